"""Random pairs as COCO panoptic files, written without the package, for all tools, and their scores in a common form.

The form is a row for each image by itself, then one for all of them: PQ, SQ and RQ of all classes, things and stuff
(NaN where none occurs), then TP, FP, FN and the mean IoU of each category.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hotcoco.panoptic import PanopticEval
from PIL import Image

from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles


@dataclass(frozen=True)
class Pair:
    gt_json: Path
    pred_json: Path
    gt_folder: Path
    pred_folder: Path

    def read(self):
        return json.loads(self.gt_json.read_text()), json.loads(self.pred_json.read_text())

    def read_single(self):
        """The same for each image by itself."""
        gt, pred = self.read()
        other = {a["image_id"]: a for a in pred["annotations"]}
        for image, annotation in zip(gt["images"], gt["annotations"], strict=True):
            shared = {"images": [image], "categories": gt["categories"]}
            yield {**shared, "annotations": [annotation]}, {**shared, "annotations": [other[image["id"]]]}


def write_pairs(folder, pairs, isthing):
    """Write `(num_classes, gt ids, gt segments, predicted ids, predicted segments)` of each image; areas are stated."""
    # `category_id` of class c is `11 c + 7`: not dense, to detect confusions of the two
    categories = [
        {"id": 11 * c + 7, "name": f"c{c}", "supercategory": "any", "isthing": int(t), "color": [c, c, c]}
        for c, t in enumerate(isthing)
    ]
    sides = {"gt": [], "pred": []}
    images = []
    for side in sides:
        (folder / side).mkdir(parents=True)
    for image_id, (_, gt_ids, gt, pred_ids, pred) in enumerate(pairs, start=1):
        name = f"{image_id:06d}.png"
        images.append({"id": image_id, "file_name": name, "height": gt_ids.shape[0], "width": gt_ids.shape[1]})
        for side, ids, segments in (("gt", gt_ids, gt), ("pred", pred_ids, pred)):
            rgb = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
            Image.fromarray(rgb).save(folder / side / name)
            infos = [
                {
                    "id": s["id"],
                    "category_id": 11 * s["category"] + 7,
                    "iscrowd": int(s["iscrowd"]),
                    "area": int((ids == s["id"]).sum()) if s["area"] is None else s["area"],
                }
                for s in segments
            ]
            sides[side].append({"image_id": image_id, "file_name": name, "segments_info": infos})
    for side, entries in sides.items():
        content = {"images": images, "annotations": entries, "categories": categories}
        (folder / f"{side}.json").write_text(json.dumps(content))
    return Pair(folder / "gt.json", folder / "pred.json", folder / "gt", folder / "pred")


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
