"""Pixel counts and mIoU equal to those of the Cityscapes scripts on random label maps."""

import math

import numpy as np
import pytest
from cityscapesscripts.evaluation import evalPixelLevelSemanticLabeling as cityscapes
from cityscapesscripts.helpers.labels import labels as all_labels
from PIL import Image

from seamseg.maps.evaluation import ConfusionMatrix

VOID = 255
LABELS = [label for label in all_labels if label.id >= 0]
EVALUATED = [label for label in LABELS if not label.ignoreInEval]
# Cityscapes' id -> dense class; all ids that are not evaluated are void
DENSE = np.full(256, VOID)
DENSE[[label.id for label in EVALUATED]] = range(len(EVALUATED))


def label_maps(seed, count=4):
    """Maps of Cityscapes ids: patches, some classes absent, some void; the prediction is a disturbed copy."""
    rng = np.random.default_rng(seed)
    present = rng.choice([label.id for label in LABELS], int(rng.integers(1, 20)), replace=False)
    guessed = present if rng.random() < 0.7 else [label.id for label in LABELS]
    for _ in range(count):
        height, width = rng.integers(1, 50, 2)
        cells = rng.choice(present, (height // 6 + 1, width // 6 + 1)).astype(np.uint8)
        gt = np.kron(cells, np.ones((6, 6), np.uint8))[:height, :width]
        noise = rng.choice(guessed, gt.shape)
        yield gt, np.where(rng.random(gt.shape) < 0.3, noise, gt).astype(np.uint8)


def test_iou_equals_the_cityscapes_scripts(tmp_path, monkeypatch):
    for key, value in (("quiet", True), ("JSONOutput", False), ("evalInstLevelScore", False)):
        monkeypatch.setattr(cityscapes.args, key, value)
    for seed in range(100):
        maps, paths = list(label_maps(seed)), []
        for i, both in enumerate(maps):
            paths.append([str(tmp_path / f"{seed}_{i}_{side}.png") for side in ("gt", "pred")])
            for path, ids in zip(paths[-1], both):
                Image.fromarray(ids).save(path)
        theirs = cityscapes.evaluateImgLists([p for _, p in paths], [g for g, _ in paths], cityscapes.args)
        confusion = ConfusionMatrix(len(EVALUATED))
        for gt, pred in maps:
            confusion.add(DENSE[gt], DENSE[pred])
        correct = np.concatenate([(DENSE[gt] == DENSE[pred])[DENSE[gt] != VOID] for gt, pred in maps])
        assert confusion.accuracy() == pytest.approx(correct.mean() if correct.size else math.nan, nan_ok=True)
        ious = [theirs["classScores"][label.name] for label in EVALUATED]
        assert confusion.iou().tolist() == pytest.approx(ious, abs=1e-12, nan_ok=True)
        assert confusion.miou() == pytest.approx(theirs["averageScoreClasses"], abs=1e-12, nan_ok=True)
