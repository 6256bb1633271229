"""Overlaps of boxes in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import widened


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
        return a.new_zeros(n), _no_match(a, n), a.new_zeros(m), _no_match(a, m)
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


def _no_match(boxes: Tensor, count: int) -> Tensor:
    return boxes.new_full((count,), -1, dtype=torch.int64)
