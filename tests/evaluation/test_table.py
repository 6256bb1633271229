"""The printed table and the JSON."""

from __future__ import annotations

import json
import math

import numpy as np

from seamseg.evaluation import ClassInfo, PanopticEvaluator, SegmentInfo, format_table


def scores():
    classes = [ClassInfo("road", 7, False), ClassInfo("car", 26, True), ClassInfo("car", 27, True)]
    evaluator = PanopticEvaluator(classes)
    gt, pred = np.array([[1, 1, 1, 2]]), np.array([[1, 1, 0, 2]])
    segments = [SegmentInfo(1, 0), SegmentInfo(2, 1)]
    evaluator.add(gt, segments, pred, segments)
    return evaluator.scores()


def test_table_is_in_percent_and_lists_what_occurs():
    lines = format_table(scores()).splitlines()
    assert lines[1].split() == ["all", "83.33", "83.33", "100.00", "83.33", "83.33", "2/3"]
    assert lines[2].split() == ["things", "100.00", "100.00", "100.00", "1/2"]
    assert any(line.split() == ["road", "stuff", "66.67", "66.67", "100.00", "66.67", "1", "0", "0"] for line in lines)
    assert sum(line.startswith("car") for line in lines) == 1
    assert "1 image;" in lines[-1]


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


def test_table_of_nothing():
    nothing = PanopticEvaluator([ClassInfo("road", 7, False)]).scores()
    assert math.isnan(nothing.PQ)
    assert format_table(nothing).splitlines()[1].split() == ["all", "-", "-", "-", "-", "-", "0/1"]
