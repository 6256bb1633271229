"""The definitions as plain masks and loops in float64, for tests.

A segment is a dict: id, category, iscrowd, area (annotated; None = counted).
"""

from __future__ import annotations

import numpy as np


def match(gt_ids, gt_segments, pred_ids, pred_segments, num_classes):
    """(iou sum, tp, fp, fn, sum of IoUs of overlapping pairs) of one image, each an array over classes."""
    iou_sum, overlapping = np.zeros(num_classes), np.zeros(num_classes)
    tp, fp, fn = (np.zeros(num_classes, np.int64) for _ in range(3))
    void = gt_ids == 0
    area = {g["id"]: int((gt_ids == g["id"]).sum()) if g["area"] is None else g["area"] for g in gt_segments}
    found, used = set(), set()
    for g in gt_segments:
        for p in pred_segments:
            if g["iscrowd"] or g["category"] != p["category"]:
                continue
            gt_mask, pred_mask = gt_ids == g["id"], pred_ids == p["id"]
            shared = int((gt_mask & pred_mask).sum())
            if shared == 0:
                continue
            union = int((pred_mask & ~void).sum()) + area[g["id"]] - shared
            overlapping[g["category"]] += shared / union
            if shared / union > 0.5:
                iou_sum[g["category"]] += shared / union
                tp[g["category"]] += 1
                found.add(g["id"])
                used.add(p["id"])
    last_crowd = {}
    for g in gt_segments:
        if g["iscrowd"]:
            last_crowd[g["category"]] = g["id"]
        elif g["id"] not in found:
            fn[g["category"]] += 1
    for p in pred_segments:
        if p["id"] in used:
            continue
        pred_mask = pred_ids == p["id"]
        ignored = void.copy()
        if p["category"] in last_crowd:
            ignored |= gt_ids == last_crowd[p["category"]]
        if (pred_mask & ignored).sum() / pred_mask.sum() > 0.5:
            continue
        fp[p["category"]] += 1
    return iou_sum, tp, fp, fn, overlapping


def means(iou_sum, tp, fp, fn, overlapping, isthing):
    """PQ, SQ, RQ over all, things and stuff, and PQ†, as a dict; NaN where no class occurs."""
    out = {}
    isthing = np.asarray(isthing, bool)
    for suffix, group in (("", np.ones_like(isthing)), ("_things", isthing), ("_stuff", ~isthing)):
        pq, sq, rq = [], [], []
        for c in np.flatnonzero(group):
            if tp[c] + fp[c] + fn[c] == 0:
                continue
            pq.append(iou_sum[c] / (tp[c] + 0.5 * fp[c] + 0.5 * fn[c]))
            sq.append(iou_sum[c] / tp[c] if tp[c] else 0.0)
            rq.append(tp[c] / (tp[c] + 0.5 * fp[c] + 0.5 * fn[c]))
        for key, values in (("PQ", pq), ("SQ", sq), ("RQ", rq)):
            out[key + suffix] = float(np.mean(values)) if values else float("nan")
    dagger = []
    for c in range(len(isthing)):
        if isthing[c] and tp[c] + fp[c] + fn[c] > 0:
            dagger.append(iou_sum[c] / (tp[c] + 0.5 * fp[c] + 0.5 * fn[c]))
        elif not isthing[c] and tp[c] + fn[c] > 0:
            dagger.append(overlapping[c] / (tp[c] + fn[c]))
    out["PQ_dagger"] = float(np.mean(dagger)) if dagger else float("nan")
    return out


def class_ious(gt_ids, gt_segments, pred_ids, pred_segments, num_classes):
    """(intersection, union) in pixels of each class of one image; pixels without true class do not count."""
    gt, pred = (np.full(gt_ids.shape, -1) for _ in range(2))
    for ids, segments, out in ((gt_ids, gt_segments, gt), (pred_ids, pred_segments, pred)):
        for s in segments:
            out[ids == s["id"]] = s["category"]
    known = gt >= 0
    shared = [int((known & (gt == c) & (pred == c)).sum()) for c in range(num_classes)]
    union = [int((known & ((gt == c) | (pred == c))).sum()) for c in range(num_classes)]
    return np.array(shared), np.array(union)
