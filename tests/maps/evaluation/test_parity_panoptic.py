"""PQ, SQ and RQ equal to those of every other tool, on a thousand random pairs with all corner cases.

hotcoco, cityscapesscripts and torchmetrics are in the extra `parity`. panopticapi needs another numpy than the package:
put it into an environment of its own and set SEAMSEG_PANOPTICAPI_PYTHON to the Python of that environment.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from support import panoptic_official
from support.panoptic_cases import CASES, CLASSES, infos, isthing, random_pair, segment
from support.panoptic_files import hotcoco_scores, our_scores, write_pairs

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator

THINGS = isthing(CLASSES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    pairs = [from_zero(*random_pair(seed)) for seed in range(CASES)]
    assert sum(any(s["id"] == 0 for s in pred) for *_, pred in pairs) > 99
    return write_pairs(tmp_path_factory.mktemp("pairs"), pairs, THINGS)


def from_zero(num_classes, gt_ids, gt, pred_ids, pred):
    """The pair with id 0 for the first predicted segment, as of DETR, if no pixel of the prediction is void."""
    if not pred or not pred_ids.all():
        return num_classes, gt_ids, gt, pred_ids, pred
    renumbered = np.where(pred_ids == pred[0]["id"], 0, pred_ids)
    return num_classes, gt_ids, gt, renumbered, [{**pred[0], "id": 0}, *pred[1:]]


@pytest.fixture(scope="module")
def ours(files, tmp_path_factory):
    return our_scores(files, tmp_path_factory.mktemp("scratch"))


@pytest.mark.parametrize(
    "scores",
    [
        hotcoco_scores,
        panoptic_official.cityscapes_scores,
        pytest.param(panoptic_official.panopticapi_scores, marks=pytest.mark.slow),
    ],
)
def test_equals_the_other_tools(ours, files, scores):
    if scores is panoptic_official.panopticapi_scores and "SEAMSEG_PANOPTICAPI_PYTHON" not in os.environ:
        pytest.skip("SEAMSEG_PANOPTICAPI_PYTHON does not name a Python that has panopticapi")
    np.testing.assert_allclose(ours, scores(files), rtol=0, atol=1e-12)


def whole(pair, rng):
    """The pair without what torchmetrics counts otherwise: pixels without a class, stuff in several segments."""
    _, gt_ids, gt, pred_ids, pred = pair
    gt_ids, pred_ids = gt_ids * np.isin(gt_ids, [s["id"] for s in gt]), pred_ids.copy()
    if not pred_ids.all():
        pred_ids[pred_ids == 0] = 1 + pred_ids.max()
        pred = [*pred, segment(pred_ids.max(), rng.integers(CLASSES))]
    sides = []
    for ids, segments in ((gt_ids, gt), (pred_ids, pred)):
        first, kept = {}, []
        for s in segments:
            if not THINGS[s["category"]] and first.setdefault(s["category"], s["id"]) != s["id"]:
                ids[ids == s["id"]] = first[s["category"]]
            elif (ids == s["id"]).any():
                kept.append(segment(s["id"], s["category"]))
        sides.append((ids, kept))
    return sides


def classes_and_ids(ids, segments):
    """`1 x H x W x 2`; 255 stands for void."""
    classes = np.full(ids.shape, 255)
    for s in segments:
        classes[ids == s["id"]] = s["category"]
    return torch.from_numpy(np.stack([classes, ids], -1))[None]


@pytest.mark.slow
def test_equals_torchmetrics_where_every_pixel_is_predicted():
    """PQ† too, its modified PQ. Its IoUs are 32-bit floats, so no more than seven digits can agree."""
    # imports scipy and matplotlib: too much for processes that run other tests
    from torchmetrics.detection import ModifiedPanopticQuality, PanopticQuality

    rng = np.random.default_rng(0)
    every = [whole(random_pair(seed), rng) for seed in range(CASES)]
    kinds = {"things": np.flatnonzero(THINGS).tolist(), "stuffs": np.flatnonzero(~np.array(THINGS)).tolist()}
    for pairs in [*([pair] for pair in every), every]:
        ours = PanopticEvaluator([ClassInfo(f"c{c}", c, t) for c, t in enumerate(THINGS)])
        theirs = PanopticQuality(**kinds, allow_unknown_preds_category=True, return_sq_and_rq=True)
        modified = ModifiedPanopticQuality(**kinds, allow_unknown_preds_category=True)
        for (gt_ids, gt), (pred_ids, pred) in pairs:
            ours.add(gt_ids, infos(gt), pred_ids, infos(pred))
            for metric in (theirs, modified):
                metric.update(classes_and_ids(pred_ids, pred), classes_and_ids(gt_ids, gt))
        scores = ours.scores()
        expected = [*theirs.compute().tolist(), modified.compute().item()]
        assert [scores.PQ, scores.SQ, scores.RQ, scores.PQ_dagger] == pytest.approx(expected, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("key", "value"), [("area", 4.5), ("area", 9.0), ("iscrowd", True), ("iscrowd", 2)])
def test_odd_values_of_a_segment_mean_the_same_to_the_official_tools(tmp_path, key, value):
    true, found = np.array([[1, 1, 1, 1, 2, 2]]), np.array([[1, 1, 1, 1, 1, 2]])
    pair = 2, true, [segment(1, 1), segment(2, 0)], found, [segment(1, 1), segment(2, 0)]
    files = write_pairs(tmp_path / "pair", [pair], THINGS)
    content, _ = files.read()
    content["annotations"][0]["segments_info"][0][key] = value
    files.gt_json.write_text(json.dumps(content))
    theirs = panoptic_official.cityscapes_scores(files)
    np.testing.assert_allclose(our_scores(files, tmp_path), theirs, rtol=0, atol=1e-12)
