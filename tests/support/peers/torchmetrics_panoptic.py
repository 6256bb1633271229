"""PQ, SQ, RQ and modified PQ (PQ†) by torchmetrics, which knows neither crowds nor stated areas."""

from __future__ import annotations

import numpy as np
import torch

UNKNOWN = 255


def torchmetrics_scores(pairs, isthing):
    """`[PQ, SQ, RQ, PQ†]`, means over the classes that occur in the pairs; NaN if none does."""
    # imports scipy and matplotlib: too much for processes that run other tests
    from torchmetrics.detection import ModifiedPanopticQuality, PanopticQuality

    things = [c for c, t in enumerate(isthing) if t]
    stuffs = [c for c, t in enumerate(isthing) if not t]
    common = {"things": things, "stuffs": stuffs, "allow_unknown_preds_category": True}
    plain, modified = PanopticQuality(**common, return_sq_and_rq=True), ModifiedPanopticQuality(**common)
    for _, gt_ids, gt, pred_ids, pred in pairs:
        maps = coloured(pred_ids, pred), coloured(gt_ids, gt)
        plain.update(*maps)
        modified.update(*maps)
    return [*plain.compute().tolist(), modified.compute().item()]


def coloured(ids, segments):
    """`1 x H x W x 2`, class and id of each pixel."""
    classes = np.full(ids.shape, UNKNOWN)
    for s in segments:
        classes[ids == s["id"]] = s["category"]
    return torch.from_numpy(np.stack([classes, ids], -1))[None]
