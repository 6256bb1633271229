"""PQ, SQ and RQ equal to those of every other tool, on a thousand random pairs with all corner cases.

hotcoco, cityscapesscripts and torchmetrics are in the extra `parity`. panopticapi needs another numpy than the package:
put it into an environment of its own and set SEAMSEG_PANOPTICAPI_PYTHON to the Python of that environment.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.panoptic_cases import CASES, CLASSES, infos, isthing, random_pair, segment
from support.panoptic_files import write_pairs
from support.panoptic_parity import largest_difference, our_scores
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


# the difference gets a name first, since a failing assert prints what its calls were given: thousands of lines here


# the difference gets a name first, since a failing assert prints what its calls were given: thousands of lines here


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


@pytest.mark.slow
def test_ours_equals_torchmetrics_where_every_pixel_is_predicted(pairs):
    """PQ† too: torchmetrics' modified PQ. Its IoUs are 32-bit floats, so no more than seven digits can agree."""
    rng = np.random.default_rng(0)
    every = [total(pair, rng) for pair in pairs]
    for part in [*([pair] for pair in every), every]:
        assert four_numbers(part) == pytest.approx(torchmetrics_scores(part, THINGS), abs=1e-6, nan_ok=True)


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
