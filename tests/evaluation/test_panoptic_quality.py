"""PQ against a plain transcription of the definition, and each corner case of the official evaluation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import panoptic_oracle as oracle
from support.panoptic_cases import infos, random_pair

from seamseg.evaluation import ClassInfo, PanopticEvaluator, PanopticQuality, SegmentInfo
from seamseg.utils.errors import InputError


def classes(isthing):
    return [ClassInfo(f"c{i}", i + 1, bool(t)) for i, t in enumerate(isthing)]


def score(gt, gt_segments, pred, pred_segments, isthing):
    quality = PanopticQuality(len(isthing))
    quality.add(np.asarray(gt), gt_segments, np.asarray(pred), pred_segments)
    return quality.result(classes(isthing))


@pytest.mark.parametrize("block", range(10))
def test_equals_the_plain_definition_on_random_pairs(block):
    for seed in range(40 * block, 40 * block + 40):
        num_classes, gt_ids, gt, pred_ids, pred = random_pair(seed)
        isthing = [c % 2 == 1 for c in range(num_classes)]
        evaluator = PanopticEvaluator(classes(isthing))
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred))
        scores = evaluator.scores()
        expected = oracle.match(gt_ids, gt, pred_ids, pred, num_classes)
        assert [c.TP for c in scores.per_class] == expected[1].tolist()
        assert [c.FP for c in scores.per_class] == expected[2].tolist()
        assert [c.FN for c in scores.per_class] == expected[3].tolist()
        for key, value in oracle.means(*expected, isthing).items():
            assert getattr(scores, key) == pytest.approx(value, abs=1e-12, nan_ok=True), (seed, key)
        shared, union = oracle.class_ious(gt_ids, gt, pred_ids, pred, num_classes)
        for c, one in enumerate(scores.per_class):
            wanted = shared[c] / union[c] if union[c] else math.nan
            assert one.IoU == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def test_iou_of_exactly_one_half_is_no_match():
    gt = np.array([[1, 1, 2, 2]])
    pred = np.array([[1, 0, 0, 0]])
    scores = score(gt, [SegmentInfo(1, 0), SegmentInfo(2, 1)], pred, [SegmentInfo(1, 0)], [1, 1])
    assert (scores.per_class[0].TP, scores.per_class[0].FP, scores.per_class[0].FN) == (0, 1, 1)


def test_void_of_the_ground_truth_is_left_out_of_the_union():
    gt = np.array([[1, 1, 0, 0, 0]])
    scores = score(gt, [SegmentInfo(1, 0)], np.ones((1, 5), int), [SegmentInfo(1, 0)], [1])
    assert scores.PQ == 1.0


def test_prediction_mostly_on_void_is_forgiven_but_not_one_half_on_void():
    gt = np.array([[0, 0, 0, 1, 1]])
    assert score(gt, [SegmentInfo(1, 0)], [[2, 2, 2, 2, 2]], [SegmentInfo(2, 1)], [1, 1]).per_class[1].FP == 0
    gt = np.array([[0, 0, 1, 1]])
    assert score(gt, [SegmentInfo(1, 0)], [[2, 2, 2, 2]], [SegmentInfo(2, 1)], [1, 1]).per_class[1].FP == 1


def test_crowd_is_never_missed_and_forgives_its_own_class_only():
    gt, segments = np.array([[1, 1, 1, 2]]), [SegmentInfo(1, 0, iscrowd=True), SegmentInfo(2, 1)]
    scores = score(gt, segments, [[5, 5, 6, 6]], [SegmentInfo(5, 0), SegmentInfo(6, 1)], [1, 1])
    crowd_class, other = scores.per_class
    assert (crowd_class.TP, crowd_class.FP, crowd_class.FN) == (0, 0, 0)
    assert math.isnan(crowd_class.PQ)
    assert (other.FP, other.FN) == (1, 1)


def test_void_and_crowd_forgive_together():
    gt = np.array([[0, 0, 1, 1, 2, 2, 2]])
    segments = [SegmentInfo(1, 0, iscrowd=True), SegmentInfo(2, 1)]
    assert score(gt, segments, [[5] * 7], [SegmentInfo(5, 0)], [1, 1]).per_class[0].FP == 0
    # a crowd elsewhere changes nothing: three of five pixels are void
    assert score([[0, 0, 0, 2, 2, 1]], segments, [[5] * 5 + [0]], [SegmentInfo(5, 0)], [1, 1]).per_class[0].FP == 0


def test_of_two_crowds_of_a_class_only_the_last_forgives():
    gt = np.array([[1, 1, 2, 2]])
    first, second = SegmentInfo(1, 0, iscrowd=True), SegmentInfo(2, 0, iscrowd=True)
    pred = np.array([[5, 5, 0, 0]])
    assert score(gt, [first, second], pred, [SegmentInfo(5, 0)], [1]).per_class[0].FP == 1
    assert score(gt, [second, first], pred, [SegmentInfo(5, 0)], [1]).per_class[0].FP == 0


def test_annotated_areas_of_the_ground_truth_are_used():
    gt, pred = np.array([[1, 1, 1]]), [[1, 1, 1]]
    assert score(gt, [SegmentInfo(1, 0, area=4)], pred, [SegmentInfo(1, 0)], [1]).PQ == 0.75
    assert score(gt, [SegmentInfo(1, 0)], pred, [SegmentInfo(1, 0)], [1]).PQ == 1.0


def test_annotated_segments_without_pixels_are_missed():
    scores = score([[0, 0]], [SegmentInfo(7, 0, area=10)], [[0, 0]], [], [1])
    assert scores.per_class[0].FN == 1


def test_classes_that_never_occur_are_left_out_of_the_means():
    scores = score([[1]], [SegmentInfo(1, 1)], [[1]], [SegmentInfo(1, 1)], [1, 1, 0])
    assert (scores.PQ, scores.PQ_things) == (1.0, 1.0)
    assert math.isnan(scores.PQ_stuff)
    assert scores.to_json()["PQ_stuff"] is None


def test_dagger_has_no_threshold_for_stuff_and_divides_by_the_ground_truth():
    # stuff overlaps by 1/4 in one image and is not predicted in another; the thing class is as in PQ
    quality = PanopticQuality(2)
    quality.add(np.array([[1, 1, 1, 1]]), [SegmentInfo(1, 0)], np.array([[1, 0, 0, 0]]), [SegmentInfo(1, 0)])
    quality.add(np.array([[1, 2]]), [SegmentInfo(1, 0), SegmentInfo(2, 1)], np.array([[0, 2]]), [SegmentInfo(2, 1)])
    scores = quality.result(classes([0, 1]))
    assert scores.PQ_stuff == 0.0
    assert scores.per_class[0].PQ_dagger == 0.125
    assert scores.PQ_dagger == (0.125 + 1.0) / 2


@pytest.mark.parametrize(
    ("pred", "segments", "words"),
    [
        ([[1, 2]], [SegmentInfo(1, 0)], "id 2 is in the predicted map but not among its segments"),
        ([[2, 3]], [SegmentInfo(1, 0)], "id 2 is in the predicted map but not among its segments (and 1 more)"),
        ([[1, 1]], [SegmentInfo(1, 0), SegmentInfo(2, 0)], "predicted segment 2 has no pixel"),
        ([[0, 1]], [SegmentInfo(0, 0), SegmentInfo(1, 0)], "id 0"),
        ([[1, 1]], [SegmentInfo(1, 9)], "class 9"),
        ([[1, 1, 1]], [SegmentInfo(1, 0)], "3 x 1"),
    ],
)
def test_contradictions_are_errors_that_name_the_image(pred, segments, words):
    quality = PanopticQuality(1)
    with pytest.raises(InputError, match="image street") as error:
        quality.add(np.array([[1, 1]]), [SegmentInfo(1, 0)], np.array(pred), segments, name="street")
    assert words in str(error.value)
    assert ("more)" in str(error.value)) == ("more)" in words)
    assert "\n" not in str(error.value)


def test_impossible_annotated_areas_are_errors():
    with pytest.raises(InputError, match="area of 0"):
        score([[1, 1]], [SegmentInfo(1, 0, area=0)], [[1, 1]], [SegmentInfo(1, 0)], [1])


def test_sums_are_exact_beyond_floats():
    # a third summed three million times, as floats would drift
    quality = PanopticQuality(1)
    quality.add(np.array([[1, 1, 1]]), [SegmentInfo(1, 0)], np.array([[1, 1, 0]]), [SegmentInfo(1, 0)])
    state = quality.state_tensor()
    quality.load_state_tensor(state * 3_000_000)
    assert quality.result(classes([1])).SQ == 2 / 3
