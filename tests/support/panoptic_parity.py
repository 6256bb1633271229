"""Scores of many images in a common form, for the comparison of two tools.

The form is a row for each image by itself, then one for all of them: PQ, SQ and RQ of all classes, things and stuff
(NaN where none occurs), then TP, FP, FN and the mean IoU of each category.
"""

from __future__ import annotations

import json
import math

from hotcoco.panoptic import PanopticEval

from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles


def our_scores(files, scratch):
    """By `evaluate_panoptic_json`, each image as files of its own, then all of them."""
    rows = []
    for contents in files.read_single():
        paths = scratch / "one_gt.json", scratch / "one_pred.json"
        for path, content in zip(paths, contents):
            path.write_text(json.dumps(content))
        rows.append(_our_row(*paths, files))
    return [*rows, _our_row(files.gt_json, files.pred_json, files)]


def _our_row(gt_json, pred_json, files):
    scores = evaluate_panoptic_json(MapFiles(gt_json, files.gt_folder), MapFiles(pred_json, files.pred_folder))
    row = [getattr(scores, key + suffix) for suffix in ("", "_things", "_stuff") for key in ("PQ", "SQ", "RQ")]
    return row + [n for c in scores.per_class for n in (c.TP, c.FP, c.FN, c.SQ if c.TP else 0)]


def hotcoco_scores(files):
    """By hotcoco."""
    return [_hotcoco_row(*one, files) for one in [*files.read_single(), files.read()]]


def _hotcoco_row(gt, pred, files):
    evaluation = PanopticEval(gt, pred, gt_folder=str(files.gt_folder), pred_folder=str(files.pred_folder))
    evaluation.evaluate()
    results = evaluation.results()
    groups = [results[name] for name in ("All", "Things", "Stuff")]
    row = [group[key] if group["n"] else math.nan for group in groups for key in ("pq", "sq", "rq")]
    for category in gt["categories"]:
        c = results["per_class"][category["id"]]
        row += [c["tp"], c["fp"], c["fn"], c["iou"] / max(1, c["tp"])]
    return row
