"""Overlaps of boxes and non-maximum suppression in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import widened

_BLOCK = 256
"""Boxes that :func:`nms` decides on with one copy to the host."""


def area(boxes: Tensor) -> Tensor:
    """See :func:`seamseg.ops.boxes.box_area`."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Compute the area that each of `N` boxes shares with each of `M`: `N x M`."""
    # axis by axis: an N x M x 2 intermediate costs twice the time
    height = torch.minimum(a[:, None, 2], b[None, :, 2]).sub_(torch.maximum(a[:, None, 0], b[None, :, 0])).clamp_(min=0)
    width = torch.minimum(a[:, None, 3], b[None, :, 3]).sub_(torch.maximum(a[:, None, 1], b[None, :, 1])).clamp_(min=0)
    return height.mul_(width)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """See :func:`seamseg.ops.boxes.box_iou`; arguments are not checked, of one type."""
    dtype, a, b = a.dtype, widened(a), widened(b)
    inter = intersection(a, b)
    union = (area(a)[:, None] + area(b)[None]).sub_(inter)
    return inter.div_(union).to(dtype)


def match_boxes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See :func:`seamseg.ops.boxes.match_boxes`; arguments are not checked, of one type."""
    a, b = widened(a), widened(b)
    n, m = a.shape[0], b.shape[0]
    if n == 0 or m == 0:
        none = torch.full((max(n, m),), -1, dtype=torch.int64, device=a.device)
        return a.new_zeros(n), none[:n], a.new_zeros(m), none[:m].clone()
    iou = box_iou(a, b)
    return *iou.max(1), *iou.max(0)


def crowd_count(boxes: Tensor, crowd_mask: Tensor) -> Tensor:
    """Count the non-zero pixels in each box clipped to the mask and truncated, int64 `N`; a NaN corner counts as 0.

    The count is signed, as the area: it is negative for corners in the wrong order. All boxes use one integral image.
    """
    height, width = crowd_mask.shape
    integral = torch.zeros(height + 1, width + 1, dtype=torch.int64, device=boxes.device)
    integral[1:, 1:] = (crowd_mask != 0).cumsum(0).cumsum(1)
    corners = widened(boxes).nan_to_num(0, torch.inf, -torch.inf)
    # clamped again as integers: float may have rounded the size up
    y0, y1 = corners[:, 0::2].clamp(0, height).long().clamp(max=height).unbind(1)
    x0, x1 = corners[:, 1::2].clamp(0, width).long().clamp(max=width).unbind(1)
    return integral[y1, x1] - integral[y0, x1] - integral[y1, x0] + integral[y0, x0]


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
