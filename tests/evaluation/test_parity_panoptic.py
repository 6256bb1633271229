"""PQ, SQ and RQ equal to those of every other tool, on a thousand random pairs with all corner cases.

hotcoco, cityscapesscripts and torchmetrics are in the extra `parity`. panopticapi needs another numpy than the package:
put it into an environment of its own and set SEAMSEG_PANOPTICAPI_PYTHON to the Python of that environment.
"""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from support.panoptic_cases import CASES, CLASSES, infos, isthing, random_pair, segment
from support.panoptic_files import write_pairs
from support.panoptic_parity import largest_difference, oracle_scores, our_scores
from support.peers import official_panoptic
from support.peers.hotcoco_panoptic import hotcoco_scores
from support.peers.torchmetrics_panoptic import torchmetrics_scores

from seamseg.evaluation import ClassInfo, PanopticEvaluator

THINGS = isthing(CLASSES)


@pytest.fixture(scope="module")
def pairs():
    return [random_pair(seed) for seed in range(CASES)]


@pytest.fixture(scope="module")
def files(pairs, tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs"), pairs, THINGS)


@pytest.fixture(scope="module")
def ours(files, tmp_path_factory):
    return our_scores(files, tmp_path_factory.mktemp("scratch"))


needs_panopticapi = pytest.mark.skipif(
    not official_panoptic.python_of_panopticapi(),
    reason="SEAMSEG_PANOPTICAPI_PYTHON does not name a Python that has panopticapi",
)


def corner_cases(pair):
    """Names of the corner cases in a pair."""
    _, gt_ids, gt, pred_ids, pred = pair
    seen, listed = set(np.unique(gt_ids).tolist()) - {0}, {s["id"] for s in gt}
    if not gt:
        yield "no ground truth"
    if not pred:
        yield "no prediction"
    if len({s["category"] for s in gt + pred}) == 1:
        yield "one class"
    if (gt_ids == 0).any():
        yield "void in the ground truth"
    if (pred_ids == 0).any():
        yield "void in the prediction"
    crowds = Counter(s["category"] for s in gt if s["iscrowd"])
    if crowds:
        yield "crowd"
    if max(crowds.values(), default=0) > 1:
        yield "several crowds of a class"
    if listed - seen:
        yield "segment without a pixel"
    if seen - listed:
        yield "pixels of no listed segment"
    if any(s["area"] not in (None, (gt_ids == s["id"]).sum()) for s in gt):
        yield "stated area differs"
    if max([0, *seen]) > 1 << 16:
        yield "id of three bytes"
    shared = Counter(zip(gt_ids.ravel().tolist(), pred_ids.ravel().tolist()))
    whole, class_of = Counter(gt_ids.ravel().tolist()), {s["id"]: s["category"] for s in pred}
    found = Counter(pred_ids.ravel().tolist())
    for s in gt:
        for p, category in class_of.items():
            n = shared[s["id"], p]
            if n and category == s["category"] and 2 * n == whole[s["id"]] + found[p] - n - shared[0, p]:
                yield "IoU of exactly one half"
    if any(2 * shared[0, p] == found[p] for p in class_of):
        yield "exactly half on void"


def test_every_corner_case_occurs_often(pairs):
    kinds = Counter(kind for pair in pairs for kind in set(corner_cases(pair)))
    assert len(kinds) == 13, kinds
    assert min(kinds.values()) >= 30, kinds


def test_many_segments_match(ours):
    tp, fp, fn, _ = np.sum(list(ours[-1]["counts"].values()), axis=0)
    assert min(tp, fp, fn) > 500


# the difference gets a name first, since a failing assert prints what its calls were given: thousands of lines here


def test_ours_equals_the_plain_definition(ours, pairs):
    difference = largest_difference(ours, oracle_scores(pairs, THINGS))
    assert difference <= 1e-12


def test_ours_equals_hotcoco(ours, files):
    difference = largest_difference(ours, hotcoco_scores(files))
    assert difference <= 1e-12


def test_ours_equals_the_cityscapes_scripts(ours, files):
    theirs = official_panoptic.cityscapes_scores(files)
    difference = largest_difference(ours, theirs)
    assert difference <= 1e-12


@pytest.mark.slow
@needs_panopticapi
def test_ours_equals_panopticapi(ours, files):
    difference = largest_difference(ours, official_panoptic.panopticapi_scores(files))
    assert difference <= 1e-12


def total(pair, rng):
    """The pair without what torchmetrics counts in its own way; every pixel of the prediction has a class then."""
    num_classes, gt_ids, gt, pred_ids, pred = pair
    listed = np.isin(gt_ids, [s["id"] for s in gt])
    out = [num_classes]
    for ids, segments, fill in ((gt_ids * listed, gt, False), (pred_ids, pred, True)):
        ids, first, kept = ids.copy(), {}, []
        if fill and not ids.all():
            ids[ids == 0] = 1 + ids.max()
            segments = [*segments, segment(ids.max(), rng.integers(num_classes))]
        for s in segments:
            if not (ids == s["id"]).any():
                continue
            # an image has one segment of each stuff class
            if not THINGS[s["category"]] and first.setdefault(s["category"], s["id"]) != s["id"]:
                ids[ids == s["id"]] = first[s["category"]]
                continue
            kept.append(segment(s["id"], s["category"]))
        out += [ids, kept]
    return tuple(out)


def four_numbers(pairs):
    """PQ, SQ, RQ and PQ† over all pairs, ours."""
    evaluator = PanopticEvaluator([ClassInfo(f"c{c}", c, t) for c, t in enumerate(THINGS)])
    for _, gt_ids, gt, pred_ids, pred in pairs:
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred))
    scores = evaluator.scores()
    return [scores.PQ, scores.SQ, scores.RQ, scores.PQ_dagger]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_ours_equals_torchmetrics_where_every_pixel_is_predicted(pairs, step):
    """PQ† too: torchmetrics' modified PQ. Its IoUs are 32-bit floats, so no more than seven digits can agree."""
    rng = np.random.default_rng(0)
    every = [total(pair, rng) for pair in pairs[::step]]
    for part in [*([pair] for pair in every), every]:
        assert four_numbers(part) == pytest.approx(torchmetrics_scores(part, THINGS), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("category", "theirs"), [(1, [1, 1, 1, 1]), (0, [1, 1, 1, 1])])
def test_torchmetrics_ignores_pixels_without_prediction(tmp_path, category, theirs):
    """Ground truth of four pixels, one of them found: perfect for torchmetrics, a false negative for all others."""
    true, found = np.array([[1, 1, 1, 1]]), np.array([[1, 0, 0, 0]])
    pair = 2, true, [segment(1, category)], found, [segment(1, category)]
    assert torchmetrics_scores([pair], THINGS) == theirs
    assert four_numbers([pair]) == [0, 0, 0, 0 if category else 0.25]
    files = write_pairs(tmp_path / "pair", [pair], THINGS)
    for scores in (hotcoco_scores(files), official_panoptic.cityscapes_scores(files)):
        assert scores[0]["All"] == [0, 0, 0]


@pytest.mark.slow
@needs_panopticapi
def test_panopticapi_counts_pixels_without_prediction(tmp_path):
    pair = 2, np.array([[1, 1, 1, 1]]), [segment(1, 1)], np.array([[1, 0, 0, 0]]), [segment(1, 1)]
    assert official_panoptic.panopticapi_scores(write_pairs(tmp_path / "pair", [pair], THINGS))[0]["All"] == [0, 0, 0]


@pytest.mark.parametrize(("key", "value"), [("area", 4.5), ("area", 9.0), ("iscrowd", True), ("iscrowd", 2)])
def test_odd_values_of_a_segment_mean_the_same_to_the_official_tools(tmp_path, key, value):
    true, found = np.array([[1, 1, 1, 1, 2, 2]]), np.array([[1, 1, 1, 1, 1, 2]])
    pair = 2, true, [segment(1, 1), segment(2, 0)], found, [segment(1, 1), segment(2, 0)]
    files = write_pairs(tmp_path / "pair", [pair], THINGS)
    content, _ = files.read()
    content["annotations"][0]["segments_info"][0][key] = value
    files.gt_json.write_text(json.dumps(content))
    theirs = official_panoptic.cityscapes_scores(files)
    difference = largest_difference(our_scores(files, tmp_path), theirs)
    assert difference <= 1e-12


def test_differences_are_found():
    one = {"All": [0.5, 1.0, 0.5], "Things": None, "Stuff": [0.5, 1.0, 0.5], "counts": {"7": [1, 1, 1, 1.0]}}
    assert largest_difference([one], [one]) == 0
    assert largest_difference([one], [{**one, "All": [0.5, 1.0, 0.75]}]) == 0.25
    assert largest_difference([one], [{**one, "counts": {"7": [1, 1, 1, 0.5]}}]) == 0.5
    for other in ({**one, "counts": {}}, {**one, "Stuff": None}, {**one, "counts": {"7": [1, 0, 1, 1.0]}}):
        assert math.isinf(largest_difference([one], [other]))
    assert math.isinf(largest_difference([one], [{**one, "All": [math.nan] * 3}]))
    assert math.isinf(largest_difference([one], []))
