"""Samples of real data sets, which are not part of this repository.

Set SEAMSEG_REAL_DATA to a folder that holds `coco_panoptic_sample/` (of the COCO panoptic tools).
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.panoptic_files import Pair
from support.panoptic_parity import largest_difference, our_scores
from support.peers import official_panoptic
from support.peers.hotcoco_panoptic import hotcoco_scores

from seamseg.evaluation import evaluate_panoptic_json
from seamseg.formats.id_png import read_id_png, write_id_png

pytestmark = pytest.mark.slow


def folder(name):
    path = Path(os.environ.get("SEAMSEG_REAL_DATA", "/nonexistent")) / name
    if not path.is_dir():
        pytest.skip("SEAMSEG_REAL_DATA names no folder with " + name)
    return path


def test_coco_sample_against_itself_and_with_one_segment_lost(tmp_path):
    root = folder("coco_panoptic_sample")
    gt = root / "panoptic_examples.json"
    same = evaluate_panoptic_json(gt, gt)
    assert (same.PQ, same.SQ, same.RQ, same.mIoU) == (1, 1, 1, 1)
    content = json.loads(gt.read_text())
    for annotation in content["annotations"]:
        ids = read_id_png(root / "panoptic_examples" / annotation["file_name"])
        person = next(s for s in annotation["segments_info"] if s["category_id"] == 1 and not s["iscrowd"])
        annotation["segments_info"].remove(person)
        write_id_png(tmp_path / "pred" / annotation["file_name"], np.where(ids == person["id"], 0, ids))
    (tmp_path / "pred.json").write_text(json.dumps(content))
    less = evaluate_panoptic_json(gt, tmp_path / "pred.json")
    person = next(c for c in less.per_class if c.info.name == "person")
    assert (person.TP, person.FP, person.FN) == (24, 0, 2)
    assert pytest.approx([1, (7 + 24 / 25) / 8], abs=1e-12) == [less.SQ, less.PQ]


@pytest.mark.parametrize("seed", range(5))
def test_coco_sample_with_a_disturbed_prediction_scores_the_same_everywhere(tmp_path, seed):
    """Maps are shifted, segments lost, renumbered or of another class; crowds come in by other seeds."""
    root, rng = folder("coco_panoptic_sample"), np.random.default_rng(seed)
    content = json.loads((root / "panoptic_examples.json").read_text())
    truth, guess = copy.deepcopy(content), content
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
    assert 0.3 < ours[-1]["All"][0] < 1
    assert largest_difference(ours, hotcoco_scores(files)) <= 1e-12
    assert largest_difference(ours, official_panoptic.cityscapes_scores(files)) <= 1e-12
    if official_panoptic.python_of_panopticapi():
        assert largest_difference(ours, official_panoptic.panopticapi_scores(files)) <= 1e-12
