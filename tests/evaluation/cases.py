"""Random pairs of panoptic maps with every awkward thing in them."""

from __future__ import annotations

import numpy as np

from seamseg.evaluation import SegmentInfo


def random_map(rng, size, num_classes, max_segments, crowds, void):
    """Patches around random seeds: `(ids, segments as dicts)`; ids are arbitrary, not consecutive."""
    count = int(rng.integers(0, max_segments + 1))
    if count == 0:
        return np.zeros(size, np.int64), []
    y, x = np.mgrid[: size[0], : size[1]]
    seeds = rng.uniform(0, 1, (count, 2)) * size
    distance = (y[..., None] - seeds[:, 0]) ** 2 + (x[..., None] - seeds[:, 1]) ** 2
    names = rng.choice(np.arange(1, 70_000), count, replace=False)
    ids = names[distance.argmin(-1)]
    if void:
        ids[rng.random(size) < rng.uniform(0, 0.4)] = 0
        top, left = rng.integers(0, size[0]), rng.integers(0, size[1])
        ids[top : top + 6, left : left + 6] = 0
    segments = [
        {
            "id": int(n),
            "category": int(rng.integers(num_classes)),
            "iscrowd": bool(crowds and rng.random() < 0.3),
            "area": None,
        }
        for n in names
    ]
    return ids.astype(np.int64), [s for s in segments if (ids == s["id"]).any()]


def perturbed(rng, gt_ids, gt_segments, num_classes):
    """A prediction near the ground truth: shifted, renumbered, some segments merged away, some of another class."""
    ids = np.roll(gt_ids, tuple(rng.integers(-2, 3, 2)), (0, 1))
    out, segments = np.zeros_like(ids), []
    for n, s in enumerate(gt_segments, start=1):
        if rng.random() < 0.1:
            continue
        out[ids == s["id"]] = n
        category = int(rng.integers(num_classes)) if rng.random() < 0.2 else s["category"]
        segments.append({"id": n, "category": category, "iscrowd": False, "area": None})
    hole = rng.integers(0, min(out.shape), 2)
    if rng.random() < 0.5:
        out[hole[0] : hole[0] + 5, hole[1] : hole[1] + 5] = 0
    return out, [s for s in segments if (out == s["id"]).any()]


def random_pair(seed):
    """`(num_classes, gt ids, gt segments, predicted ids, predicted segments)`; segments are dicts."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.choice([1, 2, 3, 7]))
    size = tuple(int(n) for n in rng.integers(1, 40, 2))
    gt_ids, gt = random_map(rng, size, num_classes, 12, crowds=rng.random() < 0.7, void=rng.random() < 0.7)
    if rng.random() < 0.7:
        pred_ids, pred = perturbed(rng, gt_ids, gt, num_classes)
    else:
        pred_ids, pred = random_map(rng, size, num_classes, 12, crowds=False, void=rng.random() < 0.5)
    if rng.random() < 0.3:
        # stated areas differ from the map where pixels were lost after annotating
        for s in gt:
            s["area"] = int((gt_ids == s["id"]).sum()) + int(rng.integers(0, 3))
    if gt and rng.random() < 0.2:
        # segments that only the JSON or only the map knows
        gt.append({"id": 99_999, "category": 0, "iscrowd": False, "area": 5})
        gt = gt[1:]
    return num_classes, gt_ids, gt, pred_ids, pred


def infos(segments):
    """The dicts as the package's own type."""
    return [SegmentInfo(**s) for s in segments]
