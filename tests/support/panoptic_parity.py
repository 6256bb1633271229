"""Scores of many images in a common form, for the comparison of two tools.

The form is a list: one entry an image, then one of all images together. An entry has `All`, `Things` and `Stuff`, each
PQ, SQ and RQ or None where no class occurs, and `counts`: TP, FP, FN and the sum of IoUs of each category that occurs.
"""

from __future__ import annotations

import json
import math

from seamseg.evaluation import evaluate_panoptic_json
from seamseg.evaluation.record import MapFiles

SUFFIXES = (("All", ""), ("Things", "_things"), ("Stuff", "_stuff"))


def our_scores(files, scratch):
    """By `evaluate_panoptic_json`, each image as files of its own, then all of them."""
    out = []
    for contents in files.read_single():
        paths = scratch / "one_gt.json", scratch / "one_pred.json"
        for path, content in zip(paths, contents):
            path.write_text(json.dumps(content))
        out.append(_entry(_evaluated(*paths, files)))
    return [*out, _entry(_evaluated(files.gt_json, files.pred_json, files))]


def _evaluated(gt_json, pred_json, files):
    return evaluate_panoptic_json(MapFiles(gt_json, files.gt_folder), MapFiles(pred_json, files.pred_folder))


def _entry(scores):
    out = {name: _group([getattr(scores, key + suffix) for key in ("PQ", "SQ", "RQ")]) for name, suffix in SUFFIXES}
    out["counts"] = {
        str(c.info.id): [c.TP, c.FP, c.FN, c.TP and c.SQ * c.TP] for c in scores.per_class if c.TP + c.FP + c.FN
    }
    return out


def _group(values):
    return None if any(math.isnan(v) for v in values) else values


def largest_difference(ours, theirs):
    """Of any score of any image; infinite if a count differs, or only one has a score."""
    if len(ours) != len(theirs):
        return math.inf
    worst = 0.0
    for mine, other in zip(ours, theirs):
        if mine["counts"].keys() != other["counts"].keys():
            return math.inf
        for category, cells in mine["counts"].items():
            if cells[:3] != other["counts"][category][:3]:
                return math.inf
            # the mean IoU: their sums over thousands of floats drift in the 13th digit
            pairs = max(1, cells[0])
            worst = _worse(worst, cells[3] / pairs, other["counts"][category][3] / pairs)
        for name, _ in SUFFIXES:
            if (mine[name] is None) != (other[name] is None):
                return math.inf
            for a, b in zip(mine[name] or (), other[name] or ()):
                worst = _worse(worst, a, b)
    return worst


def _worse(worst, a, b):
    return math.inf if math.isnan(a) or math.isnan(b) else max(worst, abs(a - b))
