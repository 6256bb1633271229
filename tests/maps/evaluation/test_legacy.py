"""The original's counting, against arrays that the original program made (`pan_stats` of ops.npz)."""

from pathlib import Path

import numpy as np
import pytest

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator
from seamseg.maps.panoptic_map import PanopticResult, Segment

GOLDEN = Path(__file__).parents[2] / "golden" / "ops.npz"
CLASSES = [ClassInfo(f"c{i}", i, i >= 4) for i in range(9)]


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as data:
        return {k: data[k] for k in data.files if k.startswith("pan_stats/")}


def evaluated(golden, cases):
    evaluator = PanopticEvaluator(CLASSES, legacy=True)
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
    np.testing.assert_allclose([c.PQ for c in scores.per_class], golden[f"pan_stats/{case}/scores"], atol=1e-12)
    np.testing.assert_allclose([c.IoU for c in scores.per_class], golden[f"pan_stats/{case}/miou"], atol=1e-12)
    assert evaluator.confusion.counts.sum(1).tolist() == golden[f"pan_stats/{case}/conf256_nonzero"].tolist()


def test_absent_classes_count_as_zero_and_void_the_miou(golden):
    scores = evaluated(golden, [0]).scores()
    known = golden["pan_stats/0/scores"]
    assert [scores.PQ, scores.PQ_stuff] == pytest.approx([known.mean(), known[:4].mean()], abs=1e-12)
    assert np.isnan(scores.mIoU)
    assert PanopticEvaluator(CLASSES, legacy=True).quality.mean_iou([0.5, 1.0]) == 0.75


def test_void_alone_counts_nothing(golden):
    evaluator = PanopticEvaluator(CLASSES[:3], legacy=True)
    empty = np.zeros((4, 5), np.int32)
    evaluator.add_result(empty, [255], [0], PanopticResult(empty, []))
    scores = evaluator.scores()
    counts = [[c.TP, c.FP, c.FN] for c in scores.per_class]
    assert np.transpose(counts).tolist() == golden["pan_stats/void_only/out"][1:].tolist()
    assert scores.PQ == 0.0
