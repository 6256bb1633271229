"""The result of a classifier."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.onnx_scenes import CLASSES

from seamseg.contrib.classification.result import Classification
from seamseg.maps.predictions import Prediction

SHARES = np.array([0.25, 0.0, 0.625, 0.125], np.float32)


def of(logits, classes=None):
    nothing = np.zeros(0, np.float32)
    found = Prediction(nothing.reshape(0, 4), nothing.astype(np.int64), nothing, None, None, (2, 3), logits=logits)
    return Classification.of(found, (60, 80), CLASSES, classes=classes)


def test_probabilities_are_those_of_the_logits():
    with np.errstate(divide="ignore"):
        logits = np.log(SHARES) + 700
    assert of(logits).probabilities.dtype == np.float32
    assert of(logits).probabilities == pytest.approx(SHARES, rel=1e-4)
    assert of(logits, [0, 3]).probabilities == pytest.approx([2 / 3, 0, 0, 1 / 3], rel=1e-4), "of these classes"
    assert of(logits).size == (60, 80)


def test_the_best_classes():
    found = Classification(SHARES, (60, 80), metadata=CLASSES)
    first = CLASSES.categories[2]
    assert found.top(2) == [(first, 0.625), (CLASSES.categories[0], 0.25)]
    assert found.counts() == {first: 1}
    assert found.to_coco()[0] == {"image_id": 0, "category_id": 2, "score": 0.625}
    assert found.to_coco("a")[0]["image_id"] == "a"
    assert found.entries()[0] == (2, {"category_id": 2, "class": first, "score": 0.625})
    assert repr(found).startswith(f"Classification(80 x 60: {first} 62%, ")


def test_fiftyone(monkeypatch):
    stand_in = SimpleNamespace(Classification=lambda *, label, confidence: (label, confidence))
    monkeypatch.setitem(sys.modules, "fiftyone", stand_in)
    assert Classification(SHARES, (2, 3), metadata=CLASSES).to_fiftyone() == {"classification": ("person", 0.625)}
