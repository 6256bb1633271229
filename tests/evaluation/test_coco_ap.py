"""Average precision of boxes and masks: what is compared, known values and odd images; see test_parity_ap."""

from __future__ import annotations

import importlib
import math
import random

import numpy as np
import pytest
import torch
from pycocotools import mask as masks

from seamseg.evaluation import ClassInfo, InstanceEvaluator, average_precision
from seamseg.evaluation.coco_ap import Instance, encode_crop, require_pycocotools
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


def test_the_order_of_the_images_does_not_matter():
    images = evaluated(random_images(5)).images
    there, back = (average_precision(CLASSES, order) for order in (images, images[::-1]))
    assert there.box.to_json() == back.box.to_json()
    assert there.mask.to_json() == back.mask.to_json()


def test_a_perfect_prediction():
    boxes = [(10, 10, 50, 60), (50, 20, 119, 159), (0, 100, 9, 130)]
    guess = prediction(boxes, [0, 1, 0], [0.9, 0.5, 0.3])
    scores = evaluated([((id_map(*boxes), [VOID, 1, 2, 1], [0] * 4, guess), "a")]).scores()
    # half a cell of the mask is lost at each border, so a mask of ones is a little smaller than its box
    assert scores.box.AP == ONE
    assert scores.box.AP50 == ONE
    assert scores.mask.AP50 == ONE
    assert [c.AP for c in scores.box.per_class] == [ONE, ONE]
    assert [c.info.name for c in scores.mask.per_class] == ["car", "person"]
    assert (scores.box.AP_small, scores.box.AP_medium) == (ONE, ONE)
    assert scores.box.AP_large == ONE


def test_known_values():
    """One car of two found; the better detection is wrong: precision 1/2 up to recall 1/2, by 101 steps of recall."""
    boxes = [(0, 0, 40, 40), (60, 60, 100, 100)]
    guess = prediction([(0, 100, 40, 140), (0, 0, 40, 40)], [0, 0], [0.9, 0.8])
    scores = evaluated([((id_map(*boxes), [VOID, 1, 1], [0] * 3, guess), "a")]).scores()
    assert pytest.approx(0.5 * 51 / 101) == scores.box.AP
    assert math.isnan(scores.box.per_class[1].AP), "there is no person"
    assert math.isnan(scores.box.AP_large)


def test_images_in_which_nothing_was_found_count():
    box = (0, 0, 40, 40)
    one = ((id_map(box), [VOID, 1], [0, 0], prediction([box], [0], [0.9])), "a")
    none = ((id_map(box), [VOID, 1], [0, 0], prediction([], [], [])), "b")
    assert evaluated([one]).scores().box.AP == ONE
    assert pytest.approx(51 / 101) == evaluated([one, none]).scores().box.AP
    assert evaluated([none]).scores().box.AP == 0.0


def test_a_crowd_forgives_and_is_not_missed():
    boxes = [(0, 0, 40, 40), (50, 0, 120, 160)]
    guess = prediction([(0, 0, 40, 40), (60, 20, 100, 60)], [0, 0], [0.5, 0.9])
    crowd = evaluated([((id_map(*boxes), [VOID, 1, 1], [0, 0, 1], guess), "a")]).scores()
    assert crowd.box.AP == ONE
    single = evaluated([((id_map(*boxes), [VOID, 1, 1], [0, 0, 0], guess), "a")]).scores()
    assert single.box.AP < 1.0


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


def test_run_lengths_of_a_crop_are_those_of_the_whole_mask():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 20, 2).tolist()
        y0, x0 = int(rng.integers(0, height + 1)), int(rng.integers(0, width + 1))
        y1, x1 = int(rng.integers(y0, height + 1)), int(rng.integers(x0, width + 1))
        crop = rng.random((y1 - y0, x1 - x0)) < rng.choice([0.0, 0.3, 0.7, 1.0])
        whole = np.zeros((height, width), np.uint8, order="F")
        whole[y0:y1, x0:x1] = crop
        assert encode_crop(crop, (y0, x0), (height, width)) == masks.encode(whole)["counts"]


def test_nothing_is_printed(capsys):
    evaluated(random_images(1)).scores()
    assert capsys.readouterr().out == ""


def test_without_pycocotools(monkeypatch):
    def missing(name, package=None):
        raise ImportError("no such thing")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs pycocotools.*pip install pycocotools"):
        require_pycocotools()
