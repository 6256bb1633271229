"""Results as labels of FiftyOne.

The package takes half a gigabyte and brings a database, so a stand-in with the documented arguments of its labels is
used instead; with SEAMSEG_REAL_FIFTYONE=1, and the package installed, the package itself.
"""

import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.onnx_scenes import CLASSES

from seamseg.inference.results.detections import Detection, Detections
from seamseg.inference.results.panoptic import Panoptic
from seamseg.inference.results.semantic import SemanticMap
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.utils.errors import SeamsegError


def detection_of(*, label, bounding_box, confidence, mask):
    assert isinstance(label, str)
    assert [type(v) for v in bounding_box] == [float] * 4
    assert confidence is None or type(confidence) is float
    assert mask is None or (mask.ndim == 2 and mask.dtype == bool)
    return SimpleNamespace(label=label, bounding_box=bounding_box, confidence=confidence, mask=mask)


STAND_IN = SimpleNamespace(
    Detection=detection_of, Detections=lambda *, detections: SimpleNamespace(detections=detections),
    Segmentation=lambda *, mask: SimpleNamespace(mask=mask),
)  # fmt: skip


@pytest.fixture(autouse=True)
def library(monkeypatch):
    if os.environ.get("SEAMSEG_REAL_FIFTYONE"):
        importlib.import_module("fiftyone")
    else:
        monkeypatch.setitem(sys.modules, "fiftyone", STAND_IN)


def test_a_panoptic_map():
    ids = np.zeros((40, 80), np.int32)
    ids[20:] = 1
    ids[10:30, 20:40] = 2
    ids[12, 20] = 0
    ids[:5, :30] = 4
    kinds = [(1, 0, None, False), (2, 3, 0.875, False), (4, 2, None, True), (9, 3, 0.5, False)]
    segments = [Segment(i, c, c > 1, score, int((ids == i).sum()), (0, 0, 1, 1), crowd) for i, c, score, crowd in kinds]
    result = Panoptic.of_map(PanopticResult(ids, segments), CLASSES)
    labels = result.to_fiftyone()
    assert list(labels) == ["segmentation", "detections"]
    assert labels["segmentation"].mask.dtype == np.uint8
    assert_array_equal(labels["segmentation"].mask, np.select([ids == k for k in (1, 2, 4)], [1, 4, 3]))
    # neither crowds nor things without a pixel
    (car,) = labels["detections"].detections
    assert (car.label, car.confidence) == ("car", 0.875)
    assert car.bounding_box == [20 / 80, 10 / 40, 20 / 80, 20 / 40]
    assert_array_equal(car.mask, ids[10:30, 20:40] == 2)


def test_class_maps(monkeypatch):
    found = SemanticMap(np.array([[0, 3, VOID]], np.uint8), metadata=CLASSES)
    assert found.to_fiftyone()["segmentation"].mask.tolist() == [[1, 4, 0]]
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    with pytest.raises(SeamsegError, match=r"to_fiftyone\(\) needs fiftyone .*: pip install fiftyone"):
        found.to_fiftyone()


@pytest.mark.parametrize("masks", [True, False])
def test_detections(masks):
    crop = np.zeros((6, 8), bool)
    crop[1:5, 2:8] = True
    crop[1, 2] = False
    objects = [
        Detection("car", 3, 0.75, (9.5, 19.25, 16.0, 28.0), (40, 80), crop if masks else None, (10, 20)),
        Detection("person", 2, 0.5, (0.0, 0.0, 4.0, 8.0), (40, 80), np.zeros((2, 2), bool) if masks else None),
    ]
    (label,) = Detections(objects, (40, 80), masks, metadata=CLASSES).to_fiftyone().values()
    car, person = label.detections
    assert [(d.label, d.confidence) for d in (car, person)] == [("car", 0.75), ("person", 0.5)]
    assert person.mask is None
    assert person.bounding_box == [0.0, 0.0, 0.1, 0.1]
    whole = [19.25 / 80, 9.5 / 40, 8.75 / 80, 6.5 / 40]
    assert car.bounding_box == ([22 / 80, 11 / 40, 6 / 80, 4 / 40] if masks else whole)
    assert_array_equal(car.mask, crop[1:5, 2:8] if masks else None)
