"""The format of Mapillary Vistas: labels, numbering of instances, names of groups, `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError

INSTANCES_PER_LABEL = 256
"""The values of the images in `instances/` are `label * 256 + number`."""

GROUP_SUFFIX = "-group"
"""Suffix of the names of group classes."""


def is_group(name: str) -> bool:
    """Whether all regions of a class are groups, i.e. crowds; the dash of the suffix is optional."""
    return name.endswith("group")


_LARGEST_LABEL = 255


def vistas_labels(metadata: Metadata, source: str) -> list[int]:
    """Return the label of each class, its `original_ids`; InputError if two are equal, or one does not fit a byte."""
    ids = [int(i) for i in metadata.original_ids]
    if len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < _LARGEST_LABEL:
        raise InputError(
            f"{source}: the original ids of the classes must differ and be 0 to {_LARGEST_LABEL - 1} in the format "
            f"vistas, not {ids}; use the format coco"
        )
    return ids


def void_label(labels: Sequence[int]) -> int:
    """Return the label after the last one: in Vistas 1.2 (65) and 2.0 (123) the official `void--unlabeled`."""
    return max(labels) + 1


def with_panoptic_ids(metadata: Metadata, labels: Sequence[int]) -> Metadata:
    """Replace the `original_ids` by the `category_id` of the panoptic JSON of Vistas: label + 1, since 0 is void."""
    return replace(metadata, images=[], original_ids=[label + 1 for label in labels])


def image_stem(name: str) -> str:
    """Remove the folders of the name of an image; Vistas has none."""
    return name.rpartition("/")[2]


def group_labels(metadata: Metadata, labels: Sequence[int], source: str) -> dict[int, int]:
    """Assign labels after that of void to the crowds of each class that is not a group itself.

    They are named `<class>-group` and not evaluated, like the groups of Vistas 2.0. Too many labels, or a class with
    the name of a group, are an InputError.
    """
    crowds = {c for image in metadata.images for c, crowd in zip(image.cat, image.iscrowd) if crowd}
    classes = [c for c in sorted(crowds) if metadata.is_thing(c) and not is_group(metadata.categories[c])]
    first = void_label(labels) + 1
    if classes and first + len(classes) - 1 > _LARGEST_LABEL:
        raise InputError(f"{source}: more than {_LARGEST_LABEL} labels including those of crowds; use the format coco")
    for c in classes:
        if _group_name(metadata, c) in metadata.categories:
            raise InputError(
                f"{source}: {metadata.categories[c]!r} has crowds, but {_group_name(metadata, c)!r} is another "
                "class; use the format coco"
            )
    return {c: first + k for k, c in enumerate(classes)}


def _group_name(metadata: Metadata, category: int) -> str:
    return metadata.categories[category] + GROUP_SUFFIX


def config(metadata: Metadata, labels: Sequence[int], groups: Mapping[int, int]) -> dict[str, Any]:
    """Create the content of `config.json`; groups and unused labels are not evaluated."""
    void, class_of = void_label(labels), {label: index for index, label in enumerate(labels)}
    names = {void: "void--unlabeled"} | {label: _group_name(metadata, index) for index, label in groups.items()}
    entries = []
    for label in range(void + 1 + len(groups)):
        index = class_of.get(label)
        name = names.get(label, f"void--unused-{label}") if index is None else metadata.categories[index]
        entry = {
            "name": name,
            "readable": name,
            "instances": index is not None and metadata.is_thing(index),
            "evaluate": index is not None,
            "color": [0, 0, 0] if index is None else list(metadata.palette[index]),
        }
        entries.append(entry)
    return {"version": 1.2, "labels": entries}


_CLASSES_1_2 = """
animal--bird 165 42 42
animal--ground-animal 0 192 0
construction--barrier--curb 196 196 196
construction--barrier--fence 190 153 153
construction--barrier--guard-rail 180 165 180
construction--barrier--other-barrier 90 120 150
construction--barrier--wall 102 102 156
construction--flat--bike-lane 128 64 255
construction--flat--crosswalk-plain 140 140 200
construction--flat--curb-cut 170 170 170
construction--flat--parking 250 170 160
construction--flat--pedestrian-area 96 96 96
construction--flat--rail-track 230 150 140
construction--flat--road 128 64 128
construction--flat--service-lane 110 110 110
construction--flat--sidewalk 244 35 232
construction--structure--bridge 150 100 100
construction--structure--building 70 70 70
construction--structure--tunnel 150 120 90
human--person 220 20 60
human--rider--bicyclist 255 0 0
human--rider--motorcyclist 255 0 100
human--rider--other-rider 255 0 200
marking--crosswalk-zebra 200 128 128
marking--general 255 255 255
nature--mountain 64 170 64
nature--sand 230 160 50
nature--sky 70 130 180
nature--snow 190 255 255
nature--terrain 152 251 152
nature--vegetation 107 142 35
nature--water 0 170 30
object--banner 255 255 128
object--bench 250 0 30
object--bike-rack 100 140 180
object--billboard 220 220 220
object--catch-basin 220 128 128
object--cctv-camera 222 40 40
object--fire-hydrant 100 170 30
object--junction-box 40 40 40
object--mailbox 33 33 33
object--manhole 100 128 160
object--phone-booth 142 0 0
object--pothole 70 100 150
object--street-light 210 170 100
object--support--pole 153 153 153
object--support--traffic-sign-frame 128 128 128
object--support--utility-pole 0 0 80
object--traffic-light 250 170 30
object--traffic-sign--back 192 192 192
object--traffic-sign--front 220 220 0
object--trash-can 140 140 20
object--vehicle--bicycle 119 11 32
object--vehicle--boat 150 0 255
object--vehicle--bus 0 60 100
object--vehicle--car 0 0 142
object--vehicle--caravan 0 0 90
object--vehicle--motorcycle 0 0 230
object--vehicle--on-rails 0 80 100
object--vehicle--other-vehicle 128 64 64
object--vehicle--trailer 0 0 110
object--vehicle--truck 0 0 70
object--vehicle--wheeled-slow 0 0 192
void--car-mount 32 32 32
void--ego-vehicle 120 10 10
"""
"""Name and colour of the evaluated labels 0, 1, ... of Vistas 1.2, in the order of its `config.json`."""


def published_classes() -> Metadata:
    """Return the 65 classes of Vistas 1.2 in the order of its labels, which the published semantic network has.

    This is not the order of data set folders (stuff, then things): a semantic network does not distinguish them.
    """
    rows = [line.split() for line in _CLASSES_1_2.split("\n") if line]
    palette = [(int(red), int(green), int(blue)) for _, red, green, blue in rows]
    return Metadata(len(rows), 0, [name for name, *_ in rows], palette, list(range(len(rows))))
