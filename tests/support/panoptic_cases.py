"""Random pairs of panoptic maps with all corner cases, also as COCO panoptic files, and their scores in a common form.

The form is a row for each image by itself, then one for all of them: PQ, SQ and RQ of all classes, things and stuff
(NaN where none occurs), then TP, FP, FN and the mean IoU of each category.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hotcoco.panoptic import PanopticEval
from PIL import Image

from seamseg.maps.evaluation import SegmentInfo, evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles

CASES = 1000

CLASSES = 7

HIGHEST_ID = (1 << 24) - 1

KINDS = ("plain", "crowds", "no truth", "no prediction", "one class", "halves", "areas", "unseen")


def random_map(rng, size, num_classes, max_segments, crowds, void):
    """Patches around random seeds: `(ids, segments as dicts)`; ids are arbitrary, not consecutive."""
    count = int(rng.integers(0, max_segments + 1))
    if count == 0:
        return np.zeros(size, np.int64), []
    y, x = np.mgrid[: size[0], : size[1]]
    seeds = rng.uniform(0, 1, (count, 2)) * size
    distance = (y[..., None] - seeds[:, 0]) ** 2 + (x[..., None] - seeds[:, 1]) ** 2
    names = random_ids(rng, count)
    ids = names[distance.argmin(-1)]
    if void:
        ids[rng.random(size) < rng.uniform(0, 0.4)] = 0
        top, left = rng.integers(0, size[0]), rng.integers(0, size[1])
        ids[top : top + 6, left : left + 6] = 0
    segments = [segment(n, rng.integers(num_classes), rng.random() < crowds) for n in names]
    return ids.astype(np.int64), [s for s in segments if (ids == s["id"]).any()]


def random_ids(rng, count):
    """Different ids; half of the time small ones, else up to the largest that a PNG can hold."""
    highest = 300 if rng.random() < 0.5 else HIGHEST_ID
    return rng.permutation(np.unique(rng.integers(1, highest + 1, 3 * count + 20)))[:count]


def segment(identity, category, iscrowd=False):
    return {"id": int(identity), "category": int(category), "iscrowd": bool(iscrowd), "area": None}


def perturbed(rng, gt_ids, gt_segments, num_classes):
    """A prediction near the ground truth: shifted, renumbered, some segments merged away, some of another class."""
    ids = np.roll(gt_ids, tuple(rng.integers(-1, 2, 2)), (0, 1))
    out, segments = np.zeros_like(ids), []
    for n, s in enumerate(gt_segments, start=1):
        if rng.random() < 0.1:
            continue
        out[ids == s["id"]] = n
        segments.append(segment(n, rng.integers(num_classes) if rng.random() < 0.2 else s["category"]))
    hole = rng.integers(0, min(out.shape), 2)
    if rng.random() < 0.5:
        out[hole[0] : hole[0] + 5, hole[1] : hole[1] + 5] = 0
    return out, [s for s in segments if (out == s["id"]).any()]


def random_pair(seed):
    """`(num_classes, gt ids, gt segments, predicted ids, predicted segments)`; segments are dicts."""
    rng, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    if kind == "halves":
        return halves(rng)
    num_classes = 1 if kind == "one class" else int(rng.choice([2, 3, CLASSES]))
    crowds = 0.5 if kind == "crowds" else 0.3 * (rng.random() < 0.5)
    size = tuple(int(n) for n in rng.integers(1, 40, 2))
    gt_ids, gt = random_map(rng, size, num_classes, 12, crowds, void=rng.random() < 0.7)
    if kind == "no truth":
        # half of the time only the JSON is empty: pixels of unlisted ids are not void
        gt_ids, gt = gt_ids * int(rng.random() < 0.5), []
    if gt and rng.random() < 0.7:
        pred_ids, pred = perturbed(rng, gt_ids, gt, num_classes)
    else:
        pred_ids, pred = random_map(rng, size, num_classes, 12, crowds=0.0, void=rng.random() < 0.5)
    if kind == "no prediction":
        pred_ids, pred = np.zeros_like(pred_ids), []
    if kind == "areas":
        # one pixel less than what is seen lets an IoU pass 1, and one segment match twice
        for s in gt:
            s["area"] = max(1, int((gt_ids == s["id"]).sum() * rng.choice([0.3, 0.9, 1.0, 1.1, 2.0])))
    if kind == "unseen" and gt:
        gt = [*gt[1:], segment(HIGHEST_ID - 1, rng.integers(num_classes), rng.random() < 0.5)]
        gt[-1]["area"] = 5
    return num_classes, gt_ids, gt, pred_ids, pred


def halves(rng):
    """Pairs whose IoU, or whose forgiven share, is one half, or next to it on either side."""
    gt_row, pred_row, gt, pred = [], [], {}, {}
    for unit in range(int(rng.integers(1, 8))):
        m, k = (int(n) for n in rng.integers(1, 30, 2))
        shapes = [
            [("a", "p", m), ("a", "", m)],
            [("a", "p", m + 1), ("a", "", m)],
            [("a", "p", m), ("a", "q", m)],
            [("a", "p", m), ("a", "", m), ("", "p", k)],
            [("", "p", m), ("b", "p", m)],
            [("", "p", m + 1), ("b", "p", m)],
            [("c", "p", m), ("", "p", k), ("b", "p", m + k)],
            [("c", "p", m), ("", "p", k + 1), ("b", "p", m + k)],
        ]
        category = int(rng.integers(2))
        for true, found, length in shapes[rng.integers(len(shapes))]:
            gt_row += [(unit, true)] * length
            pred_row += [(unit, found)] * length
            if true:
                gt[unit, true] = segment(1 + len(gt), 1 - category if true == "b" else category, true == "c")
            if found:
                pred[unit, found] = segment(1 + len(pred), category)
    rows = int(rng.integers(1, 4))
    number = ({key: i for i, key in enumerate(side, start=1)} for side in (gt, pred))
    maps = [
        np.array([[ids.get(key, 0) for key in row]] * rows, np.int64) for row, ids in zip((gt_row, pred_row), number)
    ]
    lists = [[{**s, "id": i} for i, s in enumerate(side.values(), start=1)] for side in (gt, pred)]
    return 2, maps[0], lists[0], maps[1], lists[1]


def infos(segments):
    return [SegmentInfo(**s) for s in segments]


def isthing(num_classes):
    return [c % 2 == 1 for c in range(num_classes)]


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
