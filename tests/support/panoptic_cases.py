"""Random pairs of panoptic maps with all corner cases."""

from __future__ import annotations

import numpy as np

from seamseg.maps.evaluation import SegmentInfo

CASES = 1000
"""Number of pairs for the comparisons."""

CLASSES = 7
"""Maximum number of classes of a pair."""

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
