"""PQ, SQ and RQ equal to those of every other tool, on a thousand random pairs with all corner cases.

hotcoco and cityscapesscripts are in the extra `parity`. panopticapi needs another numpy than the package:
put it into an environment of its own and set SEAMSEG_PANOPTICAPI_PYTHON to the Python of that environment.
"""

import json
import os

import numpy as np
import pytest
from support import panoptic_official
from support.panoptic_cases import (
    CASES,
    CLASSES,
    hotcoco_scores,
    isthing,
    our_scores,
    random_pair,
    segment,
    write_pairs,
)

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
