"""The official Cityscapes label ids that the toy city uses."""

from __future__ import annotations

from seamseg.maps.formats.cityscapes.labels import LABELS

EGO_VEHICLE = 1
OUT_OF_ROI = 3
STATIC = 4
ROAD = 7
SIDEWALK = 8
BUILDING = 11
POLE = 17
VEGETATION = 21
SKY = 23
PERSON = 24
RIDER = 25
CAR = 26
TRUCK = 27
BICYCLE = 33

VOIDS = (EGO_VEHICLE, OUT_OF_ROI, STATIC)
STUFF = (ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY)
THINGS = (PERSON, RIDER, CAR, TRUCK, BICYCLE)

NAMES = {label.id: label.name for label in LABELS if label.id in (*VOIDS, *STUFF, *THINGS)}
