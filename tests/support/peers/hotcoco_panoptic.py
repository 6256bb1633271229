"""Scores of COCO panoptic files by hotcoco, in the form of `tests/support/panoptic_parity.py`."""

from __future__ import annotations

from hotcoco.panoptic import PanopticEval


def hotcoco_scores(files):
    """Each image by itself, then all."""
    return [_evaluate(*one, files) for one in [*files.read_single(), files.read()]]


def _evaluate(gt, pred, files):
    evaluation = PanopticEval(gt, pred, gt_folder=str(files.gt_folder), pred_folder=str(files.pred_folder))
    evaluation.evaluate()
    results = evaluation.results()
    # -1 stands for "nothing to measure"
    out = {
        name: [results[name][key] for key in ("pq", "sq", "rq")] if results[name]["n"] else None
        for name in ("All", "Things", "Stuff")
    }
    out["counts"] = {
        str(category): [c["tp"], c["fp"], c["fn"], c["iou"]]
        for category, c in results["per_class"].items()
        if c["tp"] + c["fp"] + c["fn"]
    }
    return out
