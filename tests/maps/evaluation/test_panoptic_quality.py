"""Scores that official tools lack against plain definitions, corner cases of the official evaluation by hand, the
original's counting, and the same bits for any order of the images and any shares of them."""

import itertools
import math
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.panoptic_cases import CASES, CLASSES, infos, isthing, random_pair

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator, SegmentInfo
from seamseg.maps.panoptic_map import PanopticResult, Segment
from seamseg.utils.errors import InputError


def classes(isthing):
    return [ClassInfo(f"c{i}", i + 1, bool(t)) for i, t in enumerate(isthing)]


def score(gt, gt_segments, pred, pred_segments, isthing):
    quality = PanopticEvaluator(classes(isthing))
    quality.add(np.asarray(gt), gt_segments, np.asarray(pred), pred_segments)
    return quality.scores()


def overlaps(gt_ids, gt_segments, pred_ids, pred_segments, num_classes):
    """Sum of the IoUs of all overlapping pairs of a class, in an array over classes; not of crowds."""
    total = np.zeros(num_classes)
    for g in (g for g in gt_segments if not g["iscrowd"]):
        truth = gt_ids == g["id"]
        for p in (p for p in pred_segments if p["category"] == g["category"]):
            found = pred_ids == p["id"]
            if shared := int((truth & found).sum()):
                area = int(truth.sum()) if g["area"] is None else g["area"]
                total[g["category"]] += shared / (int((found & (gt_ids != 0)).sum()) + area - shared)
    return total


def class_map(ids, segments):
    """The class of each pixel, -1 of none."""
    out = np.full(ids.shape, -1)
    for s in segments:
        out[ids == s["id"]] = s["category"]
    return out


def test_dagger_and_class_ious_on_random_pairs():
    """`test_parity_panoptic.py` compares the other scores of these pairs with the official tools."""
    for seed in range(CASES):
        num_classes, gt_ids, gt, pred_ids, pred = random_pair(seed)
        evaluator = PanopticEvaluator(classes([c % 2 == 1 for c in range(num_classes)]))
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred))
        scores = evaluator.scores()
        overlapping = overlaps(gt_ids, gt, pred_ids, pred, num_classes)
        true, found = class_map(gt_ids, gt), class_map(pred_ids, pred)
        dagger = []
        for c, one in enumerate(scores.per_class):
            if c % 2 == 1 and one.TP + one.FP + one.FN:
                dagger.append(one.PQ)
            elif c % 2 == 0 and one.TP + one.FN:
                dagger.append(overlapping[c] / (one.TP + one.FN))
            union = ((true >= 0) & ((true == c) | (found == c))).sum()
            wanted = ((true == c) & (found == c)).sum() / union if union else math.nan
            assert one.IoU == pytest.approx(wanted, abs=1e-12, nan_ok=True)
        wanted = np.mean(dagger) if dagger else math.nan
        assert scores.PQ_dagger == pytest.approx(wanted, abs=1e-12, nan_ok=True), seed


A, B = SegmentInfo(1, 0), SegmentInfo(2, 1)
CROWD, LATER = SegmentInfo(1, 0, iscrowd=True), SegmentInfo(2, 0, iscrowd=True)


@pytest.mark.parametrize(
    ("gt", "gt_segments", "pred", "pred_segments", "counts"),
    [
        ([1, 1, 2, 2], [A, B], [1, 0, 0, 0], [A], [[0, 1, 1], [0, 0, 1]]),  # an IoU of one half
        ([1, 1, 0, 0, 0], [A], [1] * 5, [A], [[1, 0, 0]]),  # void is left out of the union
        ([0, 0, 0, 1, 1], [A], [2] * 5, [B], [[0, 0, 1], [0, 0, 0]]),  # mostly on void
        ([0, 0, 1, 1], [A], [2] * 4, [B], [[0, 0, 1], [0, 1, 0]]),  # one half on void
        ([1, 1, 1, 2], [CROWD, B], [1, 1, 2, 2], [A, B], [[0, 0, 0], [0, 1, 1]]),  # a crowd is for its class only
        ([0, 0, 1, 1, 2, 2, 2], [CROWD, B], [1] * 7, [A], [[0, 0, 0], [0, 0, 1]]),  # void and crowd together
        ([1, 1, 2, 2], [CROWD, LATER], [1, 1, 0, 0], [A], [[0, 1, 0]]),  # of two crowds the last one forgives
        ([1, 1, 2, 2], [LATER, CROWD], [1, 1, 0, 0], [A], [[0, 0, 0]]),
        ([0, 0], [SegmentInfo(7, 0, area=10)], [0, 0], [], [[0, 0, 1]]),  # a segment without pixels
    ],
)
def test_corner_cases(gt, gt_segments, pred, pred_segments, counts):
    scores = score([gt], gt_segments, [pred], pred_segments, [1] * len(counts))
    assert [[c.TP, c.FP, c.FN] for c in scores.per_class] == counts


def test_annotated_areas_of_the_ground_truth_are_used():
    gt, pred = np.array([[1, 1, 1]]), [[1, 1, 1]]
    assert score(gt, [SegmentInfo(1, 0, area=4)], pred, [A], [1]).PQ == 0.75
    assert score(gt, [A], pred, [A], [1]).PQ == 1.0
    with pytest.raises(InputError, match="area of 0"):
        score(gt, [SegmentInfo(1, 0, area=0)], pred, [A], [1])


def test_dagger_has_no_threshold_for_stuff_and_divides_by_the_ground_truth():
    # stuff overlaps by 1/4 in one image and is not predicted in another; the thing class is as in PQ
    quality = PanopticEvaluator(classes([0, 1]))
    quality.add(np.array([[1, 1, 1, 1]]), [SegmentInfo(1, 0)], np.array([[1, 0, 0, 0]]), [SegmentInfo(1, 0)])
    quality.add(np.array([[1, 2]]), [SegmentInfo(1, 0), SegmentInfo(2, 1)], np.array([[0, 2]]), [SegmentInfo(2, 1)])
    scores = quality.scores()
    assert scores.PQ_stuff == 0.0
    assert scores.per_class[0].PQ_dagger == 0.125
    assert scores.PQ_dagger == (0.125 + 1.0) / 2


@pytest.mark.parametrize(
    ("pred", "segments", "words"),
    [
        ([[1, 2]], [SegmentInfo(1, 0)], "id 2 is in the predicted map but not among its segments"),
        ([[2, 3]], [SegmentInfo(1, 0)], "id 2 is in the predicted map but not among its segments (and 1 more)"),
        ([[1, 1]], [SegmentInfo(1, 0), SegmentInfo(2, 0)], "predicted segment 2 has no pixel"),
        ([[0, 2]], [SegmentInfo(0, 0)], "id 2 is in the predicted map but not among its segments"),
        ([[1, 1]], [SegmentInfo(1, 9)], "class 9; classes are 0 to 2"),
        ([[1, 1, 1]], [SegmentInfo(1, 0)], "3 x 1"),
    ],
)
def test_contradictions_are_errors_that_name_the_image(pred, segments, words):
    quality = PanopticEvaluator(classes([1, 1, 0]))
    with pytest.raises(InputError, match="image street") as error:
        quality.add(np.array([[1, 1]]), [SegmentInfo(1, 0)], np.array(pred), segments, name="street")
    assert words in str(error.value)
    assert ("more)" in str(error.value)) == ("more)" in words)
    assert "\n" not in str(error.value)


def test_void_has_no_segment_in_the_ground_truth_and_in_the_original():
    zero, one, ids = [SegmentInfo(0, 0)], [SegmentInfo(1, 0)], np.zeros((1, 2), np.int32)
    with pytest.raises(InputError, match="the ground truth has a segment with id 0, which is void there"):
        PanopticEvaluator(classes([1])).add(ids, zero, ids + 1, one)
    with pytest.raises(InputError, match="the prediction has a segment with id 0, which the original takes for void"):
        PanopticEvaluator(classes([1]), legacy=True).add(ids + 1, one, ids, zero)
    PanopticEvaluator(classes([1]), legacy=True).add(ids + 1, one, ids + 1, [*one, SegmentInfo(-1, 0)])


def test_sums_are_exact_beyond_floats():
    # a third summed three million times, as floats would drift
    quality = PanopticEvaluator(classes([1]))
    quality.add(np.array([[1, 1, 1]]), [SegmentInfo(1, 0)], np.array([[1, 1, 0]]), [SegmentInfo(1, 0)])
    quality.load_state(quality.state() * 3_000_000)
    assert (quality.scores().SQ, quality.scores().n_images) == (2 / 3, 3_000_000)


# --- the original's counting, against arrays that the original program made (`pan_stats` of ops.npz)

STATISTICS = Path(__file__).parents[2] / "golden" / "ops.npz"
OF_STATISTICS = [ClassInfo(f"c{i}", i, i >= 4) for i in range(9)]


@pytest.fixture(scope="module")
def golden():
    with np.load(STATISTICS) as data:
        return {k: data[k] for k in data.files if k.startswith("pan_stats/")}


def evaluated(golden, cases):
    evaluator = PanopticEvaluator(OF_STATISTICS, legacy=True)
    for case in cases:
        part = {k.rsplit("/", 1)[1]: v for k, v in golden.items() if k.startswith(f"pan_stats/{case}/")}
        segments = [
            Segment(i, int(c), c >= 4, None, 0, (0, 0, 0, 0), bool(crowd))
            for i, (c, crowd) in enumerate(zip(part["pred_cat"], part["pred_iscrowd"]))
            if i > 0
        ]
        result = PanopticResult(part["pred_msk"], segments)
        evaluator.add_result(part["gt_msk"], part["gt_cat"], part["gt_iscrowd"], result, str(case))
    return evaluator


@pytest.mark.parametrize("case", range(4))
def test_counts_scores_and_ious_of_one_image(golden, case):
    evaluator = evaluated(golden, [case])
    scores = evaluator.scores()
    iou, tp, fp, fn = golden[f"pan_stats/{case}/out"]
    assert [[c.TP, c.FP, c.FN] for c in scores.per_class] == np.transpose([tp, fp, fn]).tolist()
    np.testing.assert_allclose([c.SQ * c.TP for c in scores.per_class], iou, atol=1e-12)
    quality = [(c.PQ, c.SQ * c.RQ) for c in scores.per_class]
    np.testing.assert_allclose(quality, np.stack([golden[f"pan_stats/{case}/scores"]] * 2, 1), atol=1e-12)
    np.testing.assert_allclose([c.IoU for c in scores.per_class], golden[f"pan_stats/{case}/miou"], atol=1e-12)
    assert evaluator.confusion.counts.sum(1).tolist() == golden[f"pan_stats/{case}/conf256_nonzero"].tolist()


def test_absent_classes_count_as_zero_and_void_the_miou(golden):
    scores = evaluated(golden, [0]).scores()
    known = golden["pan_stats/0/scores"]
    assert [scores.PQ, scores.PQ_stuff] == pytest.approx([known.mean(), known[:4].mean()], abs=1e-12)
    assert np.isnan(scores.mIoU)
    assert PanopticEvaluator(OF_STATISTICS, legacy=True).quality.mean_iou([0.5, 1.0]) == 0.75


def test_void_alone_counts_nothing(golden):
    evaluator = PanopticEvaluator(OF_STATISTICS[:3], legacy=True)
    empty = np.zeros((4, 5), np.int32)
    evaluator.add_result(empty, [255], [0], PanopticResult(empty, []))
    scores = evaluator.scores()
    counts = [[c.TP, c.FP, c.FN] for c in scores.per_class]
    assert np.transpose(counts).tolist() == golden["pan_stats/void_only/out"][1:].tolist()
    assert scores.PQ == 0.0


# --- any order of the images, any shares of them, and any order of adding the shares up

IMAGES = 40


def evaluator_of(seeds, legacy=False):
    evaluator = PanopticEvaluator([ClassInfo(f"c{c}", c, t) for c, t in enumerate(isthing(CLASSES))], legacy)
    for seed in seeds:
        _, gt_ids, gt, pred_ids, pred = random_pair(seed)
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred), str(seed))
    return evaluator


@pytest.fixture(scope="module", params=[False, True], ids=["official", "legacy"])
def whole(request):
    return evaluator_of(range(IMAGES), request.param), [evaluator_of([s], request.param) for s in range(IMAGES)]


@settings(max_examples=60)
@given(order=st.permutations(range(IMAGES)), cuts=st.lists(st.integers(0, IMAGES), max_size=6), draw=st.integers(0, 99))
def test_shares_merged_in_any_order(whole, order, cuts, draw):
    expected, single = whole
    edges = [0, *sorted(cuts), IMAGES]
    shares = []
    for start, stop in itertools.pairwise(edges):
        share = evaluator_of([], expected.legacy)
        for seed in order[start:stop]:
            share.merge(single[seed])
        shares.append(pickle.loads(pickle.dumps(share)))
    summed = evaluator_of([], expected.legacy)
    summed.load_state(np.sum([s.state() for s in shares], axis=0))
    # two at a time, in any order, until one is left
    choose = random.Random(draw)
    while len(shares) > 1:
        one = shares.pop(choose.randrange(len(shares)))
        shares[choose.randrange(len(shares))].merge(one)
    for got in (summed, shares[0]):
        assert np.array_equal(got.state(), expected.state())
        assert got.scores().to_json() == expected.scores().to_json()
        assert got.n_images == IMAGES
