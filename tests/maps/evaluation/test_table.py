"""The printed table and the JSON."""

from __future__ import annotations

import json

import numpy as np

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator, SegmentInfo
from seamseg.maps.evaluation.scores import pixel_iou_titles
from seamseg.maps.panoptic_map import PanopticResult, Segment


def scores():
    classes = [ClassInfo("road", 7, False), ClassInfo("car", 26, True), ClassInfo("car", 27, True)]
    evaluator = PanopticEvaluator(classes)
    gt, pred = np.array([[1, 1, 1, 2]]), np.array([[1, 1, 0, 2]])
    segments = [SegmentInfo(1, 0), SegmentInfo(2, 1)]
    evaluator.add(gt, segments, pred, segments)
    return evaluator.scores()


def covered_in_part():
    """A car of four pixels; one half is a detection, the other one is left over in the semantic map."""
    classes = [ClassInfo("road", 7, False), ClassInfo("car", 26, True)]
    evaluators = [PanopticEvaluator(classes) for _ in range(3)]
    box = (0.0, 0.0, 1.0, 4.0)
    for part, ids in zip(evaluators, ([[1, 1, 2, 2, 3, 3, 0, 0]], [[2, 2, 0, 0, 0, 0, 1, 1]])):
        mask = np.array([[1, 1, 2, 2, 2, 2, 0, 2]])
        segments = [Segment(1, 0, False, None, 2, box), Segment(2, 1, True, 0.9, 2, box)]
        result = PanopticResult(np.array(ids, np.int32), [*segments, Segment(3, 1, True, None, 2, box, iscrowd=True)])
        part.add_result(mask[None], [255, 0, 1], [0, 0, 0], result)
        evaluators[2].merge(part)
    return evaluators


def test_two_pixel_ious_are_named():
    """Pixels of a predicted crowd have a class in the class map, and belong to no segment."""
    first, second, both = covered_in_part()
    scores = first.scores()
    assert (scores.mIoU, scores.mIoU_segments) == ((1 + 4 / 5) / 2, (1 + 2 / 5) / 2)
    assert [c.IoU for c in scores.per_class] == [1, 4 / 5]
    lines = scores.table().splitlines()
    assert lines[1].split()[5] == "90.00"
    assert "mIoU is that of the class map; 70.00 is that of the segments, pixels of no segment are void" in lines
    assert "mIoU 90.00  mIoU_segments 70.00" in scores.line()
    content = scores.to_json()
    assert (content["mIoU"], content["mIoU_segments"]) == (scores.mIoU, scores.mIoU_segments)
    tags = scores.scalars()
    assert (tags["val/mIoU"], tags["val/mIoU_segments"]) == (scores.mIoU, scores.mIoU_segments)
    assert pixel_iou_titles(content) == {"mIoU": "mIoU (class map)", "mIoU_segments": "mIoU (segments)"}
    # of files there is one, and of an older version it is not known which
    assert second.scores().mIoU == second.scores().mIoU_segments
    assert "mIoU is that of the segments; pixels of no segment are void" in second.scores().table()
    assert pixel_iou_titles(second.scores().to_json()) == {"mIoU_segments": "mIoU (segments)"}
    assert pixel_iou_titles({"PQ": 0.5, "mIoU": 0.5}) == {"mIoU": "mIoU"}

    received = PanopticEvaluator(both.classes)
    received.load_state(both.state())
    assert received.scores() == both.scores()
    assert both.scores().mIoU_segments < both.scores().mIoU


def test_table_is_in_percent_and_lists_what_occurs():
    lines = scores().table().splitlines()
    assert lines[1].split() == ["all", "83.33", "83.33", "100.00", "83.33", "83.33", "2/3"]
    assert lines[2].split() == ["things", "100.00", "100.00", "100.00", "1/2"]
    assert any(line.split() == ["road", "stuff", "66.67", "66.67", "100.00", "66.67", "1", "0", "0"] for line in lines)
    assert sum(line.startswith("car") for line in lines) == 1
    assert "1 image;" in lines[-1]
    nothing = PanopticEvaluator([ClassInfo("road", 7, False)]).scores()
    assert nothing.table().splitlines()[1].split() == ["all", "-", "-", "-", "-", "-", "0/1"]


def test_json_holds_fractions_and_null():
    content = json.loads(json.dumps(scores().to_json(), allow_nan=False))
    assert content["PQ"] == (2 / 3 + 1) / 2
    assert content["n_images"] == 1
    assert set(content["per_class"]) == {"road", "car (26)", "car (27)"}
    assert content["per_class"]["car (27)"]["PQ"] is None
    assert content["per_class"]["road"] == {
        "id": 7, "isthing": False, "PQ": 2 / 3, "SQ": 2 / 3, "RQ": 1.0, "PQ_dagger": 2 / 3, "IoU": 2 / 3,
        "TP": 1, "FP": 0, "FN": 0,
    }  # fmt: skip
