"""The printed table and the JSON."""

import json
import math
from dataclasses import replace

import numpy as np

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator, SegmentInfo
from seamseg.maps.evaluation.metric import Selection
from seamseg.maps.evaluation.scores import (
    APScores,
    ClassAP,
    ClassIoU,
    DetectionScores,
    InstanceScores,
    MappedClasses,
    SemanticScores,
    pixel_iou_titles,
)
from seamseg.maps.panoptic_map import PanopticResult, Segment


def scores():
    classes = [ClassInfo("road", 7, False), ClassInfo("car", 26, True), ClassInfo("car", 27, True)]
    evaluator = PanopticEvaluator(classes)
    gt, pred = np.array([[1, 1, 1, 2, 3]]), np.array([[1, 1, 0, 2, 0]])
    segments = [SegmentInfo(1, 0), SegmentInfo(2, 1)]
    evaluator.add(gt, [*segments, SegmentInfo(3, 1)], pred, segments)
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
    assert "mIoU is of each pixel's class; where pixels without a segment count as wrong, it is 70.00" in lines
    assert "mIoU 90.00  mIoU_segments 70.00" in scores.line()
    content = scores.to_json()
    assert (content["mIoU"], content["mIoU_segments"]) == (scores.mIoU, scores.mIoU_segments)
    tags = scores.scalars()
    assert (tags["val/mIoU"], tags["val/mIoU_segments"]) == (scores.mIoU, scores.mIoU_segments)
    assert pixel_iou_titles(content) == {"mIoU": "mIoU (class map)", "mIoU_segments": "mIoU (segments)"}
    # of files there is one, and of an older version it is not known which
    assert second.scores().mIoU == second.scores().mIoU_segments
    assert "mIoU counts pixels without a segment as wrong" in second.scores().table()
    assert pixel_iou_titles(second.scores().to_json()) == {"mIoU_segments": "mIoU (segments)"}
    assert pixel_iou_titles({"PQ": 0.5, "mIoU": 0.5}) == {"mIoU": "mIoU"}

    received = PanopticEvaluator(both.classes)
    received.load_state(both.state())
    assert received.scores() == both.scores()
    assert both.scores().mIoU_segments < both.scores().mIoU


def test_table_is_in_percent_and_lists_what_occurs():
    lines = scores().table().splitlines()
    assert lines[1].split() == ["all", "66.67", "83.33", "83.33", "66.67", "58.33", "2/3"]
    assert lines[2].split() == ["things", "66.67", "100.00", "66.67", "1/2"]
    assert lines[3].split() == ["stuff", "66.67", "66.67", "100.00", "1/1"]
    assert replace(scores(), selected=Selection("mine", 0.5)).selection == ("mine", 0.5, True, True)
    assert scores().selection.name == "PQ"
    assert any(line.split() == ["road", "stuff", "66.67", "66.67", "100.00", "66.67", "1", "0", "0"] for line in lines)
    assert sum(line.startswith("car") for line in lines) == 1
    assert "1 image;" in lines[-1]
    first = next(k for k, line in enumerate(lines) if line.startswith("class"))
    assert len(set(map(len, lines[first : first + 3]))) == 1, "columns below their heads"
    assert lines[first].startswith("class  kind" + " " * 6 + "PQ")
    assert scores().advice() == ""
    nothing = PanopticEvaluator([ClassInfo("road", 7, False)]).scores()
    assert nothing.table().splitlines()[1].split() == ["all", "-", "-", "-", "-", "-", "0/1"]
    assert nothing.to_json()["PQ_stuff"] is None
    assert nothing.advice().startswith("no detection is above")


def test_average_precision():
    classes = [ClassInfo("car", 26, True), ClassInfo("bus", 28, True)]
    box, mask = (APScores(*[ap] * 6, [ClassAP(classes[0], ap), ClassAP(classes[1], math.nan)]) for ap in (0.5, 0.25))
    found = DetectionScores(n_images=2, instances=InstanceScores(box, mask))
    assert found.line() == "box AP 50.00 (AP50 50.00, AP75 50.00)  mask AP 25.00 (AP50 25.00, AP75 25.00)"
    words = [line.split() for line in found.table().splitlines()]
    assert words[1:3] == [["boxes", *["50.00"] * 6], ["masks", *["25.00"] * 6]]
    assert ["car", "50.00", "25.00"] in words
    assert not any(line[:1] == ["bus"] for line in words)
    content = found.to_json()
    assert (content["det_map"], content["msk_map"], content["n_images"]) == (0.5, 0.25, 2)
    assert content["mask"]["per_class"] == {"car": 0.25, "bus": None}


def test_pixels_and_classes_that_a_model_lacks():
    road, car, sky = (ClassInfo(name, k, False) for k, name in enumerate(("road", "car", "sky")))
    per_class = [ClassIoU(road, 0.5), ClassIoU(car, 0.25), ClassIoU(sky, math.nan)]
    found = SemanticScores(n_images=1, mIoU=0.375, accuracy=0.75, per_class=per_class)
    assert found.line() == "mIoU 37.50  accuracy 75.00"
    words = [line.split() for line in found.table().splitlines()]
    for line in (["mean", "37.50"], ["pixels", "75.00"], ["road", "50.00"], ["car", "25.00"]):
        assert line in words
    assert not any(line[:1] == ["sky"] for line in words)
    assert found.to_json()["per_class"]["sky"] == {"id": 2, "isthing": False, "IoU": None}
    assert found.scalars()["val_IoU/road"] == 0.5
    mapped = MappedClasses("a.json", {road: ["street"], car: [], sky: ["air"]}, ["tree"])
    lines = replace(found, mapped=mapped).table().splitlines()
    assert lines[-2:] == [
        "classes of the model mapped by a.json; 1 of them are void",
        "it has none for car, which count as missed; without these: mIoU 50.00",
    ]


def test_json_holds_fractions_and_null():
    content = json.loads(json.dumps(scores().to_json(), allow_nan=False))
    assert content["PQ"] == 2 / 3
    assert content["n_images"] == 1
    assert set(content["per_class"]) == {"road", "car (26)", "car (27)"}
    assert content["per_class"]["car (27)"]["PQ"] is None
    assert content["per_class"]["road"] == {
        "id": 7, "isthing": False, "PQ": 2 / 3, "SQ": 2 / 3, "RQ": 1.0, "PQ_dagger": 2 / 3, "IoU": 2 / 3,
        "TP": 1, "FP": 0, "FN": 0,
    }  # fmt: skip
