"""Ground truth of a dataset folder as one map, and its comparison with results of the network."""

import math

import numpy as np
import pytest
import torch

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator, SegmentInfo, gt_segments_from_instances
from seamseg.maps.evaluation.segments import flatten_layers, gt_segments_from_pairs
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.panoptic_map import PanopticResult, Segment
from seamseg.utils.errors import InputError

# classes: 0 road, 1 sky (stuff), 2 car, 3 person, 4 bus (things)
CLASSES = [ClassInfo(n, i, i >= 2) for i, n in enumerate(("road", "sky", "car", "person", "bus"))]


def result(id_map, segments):
    return PanopticResult(
        np.array(id_map, np.int32), [Segment(i, c, c >= 2, None, 0, (0, 0, 0, 0), crowd) for i, c, crowd in segments]
    )


def test_stuff_and_crowds_of_a_class_become_one_segment():
    mask = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 0]]])
    ids, segments = gt_segments_from_instances(mask, [255, 0, 3, 0, 2, 3, 2, 2], [0, 0, 0, 0, 1, 0, 1, 0], 2)
    assert ids.tolist() == [[1, 2, 1, 3], [4, 3, 5, 0]]
    kinds = [(0, False, 2), (3, False, 1), (2, True, 2), (3, False, 1), (2, False, 1)]
    assert segments == [SegmentInfo(number, *kind) for number, kind in enumerate(kinds, 1)]
    assert gt_segments_from_instances(mask * 0, [255], [0], 2)[1] == []


def test_segments_from_pairs_are_those_of_the_map():
    rng = np.random.default_rng(0)
    mask, other = rng.integers(0, 12, (30, 40)), rng.integers(0, 5, (30, 40))
    cat, iscrowd = [255, *rng.choice([0, 1, 2, 3, 255], 11).tolist()], [0, *rng.integers(0, 2, 11).tolist()]
    ids, segments = gt_segments_from_instances(mask, cat, iscrowd, 2)
    before, counts = joint_histogram(mask, other)
    pairs, found = gt_segments_from_pairs(before, counts, cat, iscrowd, 2)
    assert found == segments
    table = np.zeros((len(segments) + 1, 5), int)
    np.add.at(table, (pairs[:, 0], pairs[:, 1]), counts)
    for (left, right), count in zip(*joint_histogram(ids, other)):
        assert table[left, right] == count


def test_first_layer_has_the_pixel():
    assert flatten_layers(np.array([[[0, 1, 1]], [[2, 2, 0]]])).tolist() == [[2, 1, 1]]


def test_invalid_maps():
    with pytest.raises(InputError, match=r"image a: .* id 3, .* 0 to 1"):
        gt_segments_from_instances(np.array([[3]]), [255, 0], [0, 0], 1, "a")
    with pytest.raises(InputError, match=r"image a: the prediction is 1 x 2 pixels \(width x height\), .* 2 x 1"):
        PanopticEvaluator(CLASSES).add_result(np.zeros((1, 2), int), [255], [0], result([[0], [0]], []), "a")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_a_perfect_result_scores_one_whatever_the_type_of_the_map(dtype):
    """A void class and an id without pixels are left out."""
    mask = np.array([[[1, 1, 2], [3, 3, 4]]], dtype)
    evaluator = PanopticEvaluator(CLASSES)
    perfect = result([[9, 9, 4], [7, 7, 0]], [(9, 0, False), (4, 2, False), (7, 2, False)])
    evaluator.add_result(mask, [255, 0, 2, 2, 255, 1], [0] * 6, perfect)
    scores = evaluator.scores()
    assert (scores.PQ, scores.PQ_dagger, scores.mIoU, scores.n_images) == (1.0, 1.0, 1.0, 1)
    assert math.isnan(scores.per_class[1].PQ)


def test_predicted_crowds_are_void_for_pq_and_of_their_class_for_pixels():
    evaluator = PanopticEvaluator(CLASSES)
    predicted = result([[5, 6, 6, 7]], [(5, 0, False), (6, 2, True), (7, 2, False)])
    evaluator.add_result(np.array([[1, 1, 2, 2]]), [255, 0, 2], [0, 0, 0], predicted)
    scores = evaluator.scores()
    car = scores.per_class[2]
    assert (car.TP, car.FP, car.FN) == (0, 1, 1)
    assert car.IoU == pytest.approx(2 / 3)
    assert scores.per_class[0].FN == 1
    assert scores.mIoU_segments == 0.5
