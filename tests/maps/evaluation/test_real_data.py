"""Scores of real images, which are not part of this repository, equal to those of the official tools.

Set SEAMSEG_REAL_DATA to a folder that holds `coco_panoptic_sample/` (of the COCO panoptic tools) and
`cityscapes_sample/gtFine/{train,val}`.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import cityscapes_official, panoptic_official
from support.cityscapes_scenes import disturbed, labels_of, save, write_instances, write_panoptic
from support.panoptic_files import Pair, hotcoco_scores, our_scores

from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes, find_frames
from seamseg.maps.formats.id_png import read_id_png, write_id_png

pytestmark = pytest.mark.slow


def folder(name):
    path = Path(os.environ.get("SEAMSEG_REAL_DATA", "/nonexistent")) / name
    if not path.is_dir():
        pytest.skip(f"SEAMSEG_REAL_DATA names no folder with {name}")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_images_of_coco(tmp_path, seed):
    """Maps are shifted, segments lost, renumbered or of another class; crowds come in by other seeds."""
    root, rng = folder("coco_panoptic_sample"), np.random.default_rng(seed)
    guess = json.loads((root / "panoptic_examples.json").read_text())
    truth = copy.deepcopy(guess)
    for true, annotation in zip(truth["annotations"], guess["annotations"]):
        ids = read_id_png(root / "panoptic_examples" / annotation["file_name"]).astype(np.int64)
        ids = np.roll(ids, tuple(rng.integers(-4, 5, 2)), (0, 1))
        out, kept = np.zeros_like(ids), []
        for number, one in enumerate(annotation["segments_info"], start=1):
            true["segments_info"][number - 1]["iscrowd"] = int(one["iscrowd"] or rng.random() < 0.1)
            if rng.random() < 0.1 or not (ids == one["id"]).any():
                continue
            other = annotation["segments_info"][0]["category_id"]
            kept.append({**one, "id": number, "category_id": other if rng.random() < 0.1 else one["category_id"]})
            out[ids == one["id"]] = number
        annotation["segments_info"] = kept
        write_id_png(tmp_path / "pred" / annotation["file_name"], out)
    files = Pair(tmp_path / "gt.json", tmp_path / "pred.json", root / "panoptic_examples", tmp_path / "pred")
    files.gt_json.write_text(json.dumps(truth))
    files.pred_json.write_text(json.dumps(guess))
    ours = our_scores(files, tmp_path)
    assert 0.3 < ours[-1][0] < 1
    others = [hotcoco_scores, panoptic_official.cityscapes_scores]
    if "SEAMSEG_PANOPTICAPI_PYTHON" in os.environ:
        others.append(panoptic_official.panopticapi_scores)
    for scores in others:
        np.testing.assert_allclose(ours, scores(files), rtol=0, atol=1e-12)


@pytest.mark.parametrize("split", ["train", "val"])
def test_frames_of_cityscapes(tmp_path, split):
    gt, results, work = folder("cityscapes_sample") / "gtFine" / split, tmp_path / "results", tmp_path / "work"
    rng, annotations = np.random.default_rng(0), []
    for frame in find_frames(gt):
        truth = np.asarray(Image.open(frame.instance_ids)).astype(np.int64)
        guess = disturbed(rng, truth)
        save(results / "pixel" / f"{frame.stem}.png", labels_of(guess).astype(np.uint8))
        write_instances(rng, results / "instance", frame.stem, guess, truth)
        annotations.append(write_panoptic(results / "panoptic", frame.stem, guess))
    (results / "panoptic.json").write_text(json.dumps({"annotations": annotations}))

    scores = evaluate_cityscapes(gt, results)
    pixel = cityscapes_official.pixel_level(gt, results / "pixel", work)
    instance = cityscapes_official.instance_level(gt, results / "instance", work)["averages"]
    panoptic = cityscapes_official.panoptic(gt, results / "panoptic.json", work)["All"]
    names = {"IoU": "Classes", "iIoU": "InstClasses", "category_IoU": "Categories", "category_iIoU": "InstCategories"}
    expected = {("pixel", key): pixel[f"averageScore{name}"] for key, name in names.items()}
    expected |= {("instance", "AP"): instance["allAp"], ("instance", "AP50"): instance["allAp50%"]}
    expected |= {("panoptic", key): panoptic[key.lower()] for key in ("PQ", "SQ", "RQ")}
    of = {"pixel": scores.pixel.means, "instance": scores.instance.means, "panoptic": vars(scores.panoptic)}
    found = {(part, key): of[part][key] for part, key in expected}
    assert found == pytest.approx(expected, abs=1e-12, rel=1e-12)
