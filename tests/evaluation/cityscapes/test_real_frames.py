"""Real frames of Cityscapes, which are not part of this repository.

Set SEAMSEG_REAL_DATA to a folder that holds `cityscapes_sample/gtFine/{train,val}`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import cityscapes_official as official
from support.cityscapes_scenes import disturbed, labels_of, save, write_instances, write_panoptic

from seamseg.evaluation.cityscapes import evaluate_cityscapes, find_frames

pytestmark = pytest.mark.slow


def predict(gt, results):
    """Results for the frames of a split, made from its ground truth."""
    rng = np.random.default_rng(0)
    annotations = []
    for frame in find_frames(gt):
        truth = np.asarray(Image.open(frame.instance_ids)).astype(np.int64)
        guess = disturbed(rng, truth)
        save(results / "pixel" / f"{frame.stem}.png", labels_of(guess).astype(np.uint8))
        write_instances(rng, results / "instance", frame.stem, guess, truth)
        annotations.append(write_panoptic(results / "panoptic", frame.stem, guess))
    (results / "panoptic.json").write_text(json.dumps({"annotations": annotations}))


@pytest.fixture(params=["train", "val"])
def gt(request):
    path = Path(os.environ.get("SEAMSEG_REAL_DATA", "/nonexistent")) / "cityscapes_sample" / "gtFine" / request.param
    if not path.is_dir():
        pytest.skip("SEAMSEG_REAL_DATA names no folder with cityscapes_sample")
    return path


def test_equal_to_the_official_tools(gt, tmp_path):
    results, work = tmp_path / "results", tmp_path / "work"
    predict(gt, results)
    scores = evaluate_cityscapes(gt, results)
    pixel = official.pixel_level(gt, results / "pixel", work)
    for key, name in (
        ("IoU", "Classes"), ("iIoU", "InstClasses"), ("category_IoU", "Categories"), ("category_iIoU", "InstCategories")
    ):  # fmt: skip
        assert getattr(scores.pixel, key) == pytest.approx(pixel[f"averageScore{name}"], abs=1e-12, rel=1e-12)
    instance = official.instance_level(gt, results / "instance", work)["averages"]
    for key, name in (("AP", "allAp"), ("AP50", "allAp50%")):
        assert getattr(scores.instance, key) == pytest.approx(instance[name], abs=1e-12, rel=1e-12)
    panoptic = official.panoptic(gt, results / "panoptic.json", work)["All"]
    for key in ("PQ", "SQ", "RQ"):
        assert getattr(scores.panoptic, key) == pytest.approx(panoptic[key.lower()], abs=1e-12, rel=1e-12)
