"""Average precision of boxes and masks: what is compared, known values and odd images; see test_parity_ap."""

from __future__ import annotations

import importlib
import math
import random

import numpy as np
import pytest
import torch
from pycocotools import mask as masks

from seamseg.evaluation import ClassInfo, InstanceEvaluator
from seamseg.evaluation.coco_ap import Instance, require_pycocotools
from seamseg.panoptic_map import VOID
from seamseg.predictions import Prediction
from seamseg.utils.errors import InputError

CLASSES = [ClassInfo("road", 7, False), ClassInfo("car", 26, True), ClassInfo("person", 24, True)]
SIZE = (120, 160)

ONE = pytest.approx(1.0, abs=1e-14)
"""pycocotools divides by a number that is larger than it should be by an epsilon."""


def prediction(boxes, classes, scores, size=SIZE, with_masks=True):
    """Detections whose masks fill their boxes."""
    n = len(boxes)
    logits = torch.full((n, 28, 28), 20.0) if with_masks else None
    box = torch.tensor(boxes, dtype=torch.float32).reshape(n, 4)
    return Prediction(box, torch.tensor(classes, dtype=torch.long), torch.tensor(scores), logits, None, size)


def id_map(*boxes, size=SIZE):
    """A map of one layer with the rectangles as ids 1, 2, ..."""
    ids = np.zeros((1, *size), np.int32)
    for i, (y0, x0, y1, x1) in enumerate(boxes, start=1):
        ids[0, y0:y1, x0:x1] = i
    return torch.from_numpy(ids)


def random_images(seed, count=7):
    """Ground truth of both things, crowds, void and stuff, and detections near it, some of the wrong class."""
    draw = random.Random(seed)
    for number in range(count):
        boxes = []
        for _ in range(draw.randint(0, 6)):
            y, x = draw.randint(0, 70), draw.randint(0, 100)
            boxes.append((y, x, y + draw.randint(5, 49), x + draw.randint(5, 59)))
        cat = [VOID, *(draw.choice([0, 1, 2, 2, VOID]) for _ in boxes)]
        crowd = [0, *(int(draw.random() < 0.2) for _ in boxes)]
        found = []
        for y0, x0, y1, x1 in boxes * 2:
            shift = [draw.uniform(-6, 6) for _ in range(4)]
            found.append(([y0 + shift[0], x0 + shift[1], y1 + shift[2], x1 + shift[3]], draw.randint(0, 1)))
        scores = [round(draw.random(), 1) for _ in found]
        yield (
            (id_map(*boxes), cat, crowd, prediction([b for b, _ in found], [c for _, c in found], scores)),
            str(number),
        )


def evaluated(images):
    evaluator = InstanceEvaluator(CLASSES)
    for image, name in images:
        evaluator.add(*image, name)
    return evaluator


def whole_mask(box):
    """The pixels whose centre is where the bilinear sample of a mask of ones in the box is above one half, if any."""
    shares = []
    for low, high, side in zip(box[:2], box[2:], SIZE):
        at = np.arange(side) + 0.5
        shares.append(np.clip(np.minimum(at - low, high - at) * 28 / (high - low) + 0.5, 0, high > low))
    return shares[0][:, None] * shares[1] > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_what_is_compared(seed):
    """The things of the ground truth and all detections, with the runs of their whole masks."""

    def runs(mask):
        return masks.encode(np.asfortranarray(mask.astype(np.uint8)))

    images = list(random_images(seed))
    for ((ids, cat, crowd, guess), name), image in zip(images, evaluated(images).images, strict=True):
        assert (image.name, image.size) == (name, SIZE)
        things = [(i, runs(ids[0].numpy() == i)) for i in np.unique(ids).tolist() if cat[i] in (1, 2)]
        assert image.ground_truth == [
            Instance(cat[i] - 1, tuple(masks.toBbox(rle)), rle["counts"], None, bool(crowd[i])) for i, rle in things
        ]
        found = zip(guess.boxes.tolist(), guess.classes.tolist(), guess.scores.tolist())
        assert image.detections == [
            Instance(category, (b[1], b[0], b[3] - b[1], b[2] - b[0]), runs(whole_mask(b))["counts"], score)
            for b, category, score in found
        ]


def test_known_values(capsys):
    """One car of two found; the better detection is wrong: precision 1/2 up to recall 1/2, by 101 steps of recall."""
    boxes = [(0, 0, 40, 40), (60, 60, 100, 100)]
    guess = prediction([(0, 100, 40, 140), (0, 0, 40, 40)], [0, 0], [0.9, 0.8])
    scores = evaluated([((id_map(*boxes), [VOID, 1, 1], [0] * 3, guess), "a")]).scores()
    assert pytest.approx(0.5 * 51 / 101) == scores.box.AP
    assert math.isnan(scores.box.per_class[1].AP), "there is no person"
    assert math.isnan(scores.box.AP_large)
    assert capsys.readouterr().out == "", "pycocotools prints"


def test_layers_overlap():
    """An instance that lies under another is whole in its layer."""
    ids = torch.cat([id_map((0, 0, 60, 60)), torch.where(id_map((20, 20, 40, 40)) > 0, 2, 0).int()])
    guess = prediction([(0, 0, 60, 60), (20, 20, 40, 40)], [0, 1], [0.9, 0.9])
    assert evaluated([((ids, [VOID, 1, 2], [0, 0, 0], guess), "a")]).scores().box.AP == ONE


def test_detections_are_resized_to_the_image():
    half = prediction([(5, 5, 25, 30)], [0], [0.9], size=(60, 80))
    evaluator = evaluated([((id_map((10, 10, 50, 60)), [VOID, 1], [0, 0], half), "a")])
    assert evaluator.images[0].detections[0].box == (10.0, 10.0, 50.0, 40.0)
    assert evaluator.scores().box.AP == ONE
    assert evaluator.scores().mask.AP50 == ONE


def test_without_masks():
    guess = prediction([(0, 0, 40, 40)], [0], [0.9], with_masks=False)
    scores = evaluated([((id_map((0, 0, 40, 40)), [VOID, 1], [0, 0], guess), "a")]).scores()
    assert scores.box.AP == ONE
    assert scores.mask is None
    assert list(scores.kinds) == ["box"]


def test_without_pycocotools(monkeypatch):
    def missing(name, package=None):
        raise ImportError("no such thing")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs pycocotools.*pip install pycocotools"):
        require_pycocotools()
