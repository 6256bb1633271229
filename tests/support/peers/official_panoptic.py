"""Scores of two COCO panoptic files by the official tools, image by image and as a whole, as JSON on the last line.

A program of its own, since panopticapi needs another numpy than the package:

    python official_panoptic.py panopticapi.evaluation gt.json pred.json gt_folder pred_folder

`module` is `panopticapi.evaluation` or `cityscapesscripts.evaluation.evalPanopticSemanticLabeling`; both have the same
functions.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys

GROUPS = (("All", None), ("Things", True), ("Stuff", False))


def official_scores(module_name, gt_json, pred_json, gt_folder, pred_folder):
    """`[scores of each image..., scores of all]`: PQ, SQ, RQ by group (None where no class occurs) and counts."""
    module = importlib.import_module(module_name)
    with open(gt_json) as gt_file, open(pred_json) as pred_file:
        gt, pred = json.load(gt_file), json.load(pred_file)
    categories = {c["id"]: c for c in gt["categories"]}
    other = {a["image_id"]: a for a in pred["annotations"]}
    total, out = module.PQStat(), []
    for annotation in gt["annotations"]:
        with contextlib.redirect_stdout(io.StringIO()):
            one = module.pq_compute_single_core(
                0, [(annotation, other[annotation["image_id"]])], str(gt_folder), str(pred_folder), categories
            )
        total += one
        out.append(summary(one, categories))
    return [*out, summary(total, categories)]


def summary(stat, categories):
    """PQ, SQ, RQ of each group and (TP, FP, FN, sum of IoUs) of each category that occurs."""
    out = {}
    for name, kind in GROUPS:
        try:
            means, _ = stat.pq_average(categories, isthing=kind)
            out[name] = [float(means[key]) for key in ("pq", "sq", "rq")]
        except ZeroDivisionError:
            out[name] = None
    cells = {str(c): stat[c] for c in categories}
    out["counts"] = {c: [int(s.tp), int(s.fp), int(s.fn), float(s.iou)] for c, s in cells.items() if s.tp + s.fp + s.fn}
    return out


def cityscapes_scores(files):
    """By the Cityscapes scripts, in this process."""
    return official_scores("cityscapesscripts.evaluation.evalPanopticSemanticLabeling", *vars(files).values())


def python_of_panopticapi():
    """The Python that has panopticapi, None if nobody named one."""
    return os.environ.get("SEAMSEG_PANOPTICAPI_PYTHON")


def panopticapi_scores(files):
    """By panopticapi, in a process of its own."""
    command = [python_of_panopticapi(), __file__, "panopticapi.evaluation", *map(str, vars(files).values())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(official_scores(*sys.argv[1:])))
