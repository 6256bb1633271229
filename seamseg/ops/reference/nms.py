"""Non-maximum suppression in plain torch: block by block, with one copy to the host a block."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import widened
from seamseg.ops.reference.boxes import box_iou

_BLOCK = 256


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int, groups: Tensor | None) -> Tensor:
    """See :func:`seamseg.ops.nms.nms`."""
    count = boxes.shape[:1]
    if boxes.shape[1:] != (4,) or scores.shape != count or (groups is not None and groups.shape != count):
        raise RuntimeError("nms: boxes must be N x 4, scores and groups N")
    # overlaps in half precision have two correct digits only
    boxes = widened(boxes)
    order = torch.argsort(scores, descending=True, stable=True)
    if groups is None:
        return _suppress(boxes, order, iou_threshold, n_max)
    order = order[torch.argsort(groups[order], stable=True)]
    lengths = torch.unique_consecutive(groups[order], return_counts=True)[1].tolist()
    parts = [_suppress(boxes, part, iou_threshold, n_max) for part in order.split(lengths)]
    # by score again; the sort by index before it keeps ties ordered by index
    kept = torch.cat((order[:0], *parts)).sort().values
    return kept[torch.argsort(scores[kept], descending=True, stable=True)]


def nms_fixed(
    boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int, groups: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.nms.nms_fixed`."""
    kept = nms(boxes, scores, iou_threshold, n_max, groups)
    indices = kept.new_full((fixed_size(boxes.shape[0], n_max, groups),), -1)
    indices[: kept.shape[0]] = kept
    return indices, torch.full((), kept.shape[0], dtype=torch.int64, device=kept.device)


def fixed_size(count: int, n_max: int, groups: Tensor | None) -> int | torch.SymInt:
    """Return the largest number of boxes that :func:`nms` may keep of `count`."""
    return torch.sym_min(count, n_max) if n_max > 0 and groups is None else count


def _suppress(boxes: Tensor, order: Tensor, threshold: float, n_max: int) -> Tensor:
    """Return the indices that are kept of those in `order`, by decreasing score.

    A block is tested against all boxes that are kept, then within itself.
    """
    kept = order[:0]
    for block in order.split(_BLOCK):
        free = block[~(box_iou(boxes[kept], boxes[block]) >= threshold).any(0)]
        kept = torch.cat((kept, free[_greedy(box_iou(boxes[free], boxes[free]) >= threshold)]))
        if 0 < n_max <= kept.shape[0]:
            return kept[:n_max]
    return kept


def _greedy(suppresses: Tensor) -> Tensor:
    """Choose greedily by the `N x N` matrix of suppressions; rows of low index come first."""
    matrix = suppresses.triu(1).cpu().numpy()
    alive = [True] * len(matrix)
    counts = matrix.sum(1).tolist()
    for i, count in enumerate(counts):
        if count and alive[i]:
            for j in matrix[i].nonzero()[0].tolist():
                alive[j] = False
    return torch.tensor(alive).nonzero().squeeze(1).to(suppresses.device)
