"""Scores of COCO panoptic files by the official tools, in the form of `panoptic_cases.py`, as JSON on the last line.

A program of its own, since panopticapi needs another numpy than the package:

    python panoptic_official.py panopticapi.evaluation gt.json pred.json gt_folder pred_folder

`module` is `panopticapi.evaluation` or `cityscapesscripts.evaluation.evalPanopticSemanticLabeling`; both have the same
functions.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys


def official_scores(module_name, gt_json, pred_json, gt_folder, pred_folder):
    """Return a row of each image, then one of all of them."""
    module = importlib.import_module(module_name)
    with open(gt_json) as gt_file, open(pred_json) as pred_file:
        gt, pred = json.load(gt_file), json.load(pred_file)
    categories = {c["id"]: c for c in gt["categories"]}
    other = {a["image_id"]: a for a in pred["annotations"]}
    total, rows = module.PQStat(), []
    for annotation in gt["annotations"]:
        with contextlib.redirect_stdout(io.StringIO()):
            one = module.pq_compute_single_core(
                0, [(annotation, other[annotation["image_id"]])], str(gt_folder), str(pred_folder), categories
            )
        total += one
        rows.append(row_of(one, categories))
    return [*rows, row_of(total, categories)]


def row_of(stat, categories):
    row = []
    for kind in (None, True, False):
        try:
            means, _ = stat.pq_average(categories, isthing=kind)
            row += [float(means[key]) for key in ("pq", "sq", "rq")]
        except ZeroDivisionError:
            row += [float("nan")] * 3
    for c in categories:
        row += [int(stat[c].tp), int(stat[c].fp), int(stat[c].fn), float(stat[c].iou) / max(1, stat[c].tp)]
    return row


def cityscapes_scores(files):
    return official_scores("cityscapesscripts.evaluation.evalPanopticSemanticLabeling", *vars(files).values())


def panopticapi_scores(files):
    command = [
        os.environ["SEAMSEG_PANOPTICAPI_PYTHON"],
        __file__,
        "panopticapi.evaluation",
        *map(str, vars(files).values()),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(official_scores(*sys.argv[1:])))
