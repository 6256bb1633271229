"""Algebra of boxes `(y0, x0, y1, x1)`: areas, overlaps, the box code and its loss (docs/contract.md, section 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import check_boxes, define, describe, widened
from seamseg.ops.reference import boxes as reference

MAX_LOG_SCALE = math.log(1000 / 16)
"""Upper bound of the `dh` and `dw` of a code when decoding."""
MIN_ANCHOR_SIDE = 1e-5
"""Sides of the reference box are at least this, in pixels, when encoding."""


def box_area(boxes: Tensor) -> Tensor:
    """Compute the signed area of boxes, in pixels: `... x 4` to `...`."""
    check_boxes("box_area", "boxes", boxes, dims=None)
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the intersection over union of every pair of boxes.

    Parameters
    ----------
    a, b : `N x 4` and `M x 4`; half precision is computed in float32

    Returns
    -------
    `N x M`, NaN where both boxes are empty; not differentiable
    """
    a, b = _pair("box_iou", a, b)
    return _box_iou(a.detach(), b.detach())


def match_boxes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for each box the box of the other set with the highest IoU, without the matrix of all overlaps.

    Equal to the `max` of :func:`box_iou` along each axis: the first of equal values, the first NaN before all others.
    Not differentiable. For boxes `N x 4` and `M x 4` return the highest IoU of each box of `a` (`N`, float32 at least;
    0 if `b` has no boxes) and that box of `b` (int64 `N`; -1 if there is none), then the same for each box of `b`.
    """
    a, b = _pair("match_boxes", a, b)
    return _match_boxes(a.detach(), b.detach())


def _pair(op: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    check_boxes(op, "a", a)
    check_boxes(op, "b", b)
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


def box_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Compute the intersection of every pair of boxes over the area of the first, `N x M`; NaN where that is empty."""
    a, b = _pair("box_overlap", a, b)
    return reference.intersection(a, b).div_(box_area(a)[:, None])


def encode_boxes(anchors: Tensor, targets: Tensor) -> Tensor:
    """Compute the box codes of `targets` relative to `anchors` (docs/contract.md, section 4 "Box code").

    Both are `... x 4`, broadcast against each other. Codes, `... x 4`, are `(dy, dx, dh, dw)`: shift of the centre in
    sides of the anchor, log of the ratio of sides.
    """
    check_boxes("encode_boxes", "anchors", anchors, dims=None)
    check_boxes("encode_boxes", "targets", targets, dims=None)
    size0 = (anchors[..., 2:] - anchors[..., :2]).clamp(min=MIN_ANCHOR_SIDE)
    size1 = targets[..., 2:] - targets[..., :2]
    centre0 = (anchors[..., :2] + anchors[..., 2:]) / 2
    centre1 = (targets[..., :2] + targets[..., 2:]) / 2
    return torch.cat(((centre1 - centre0) / size0, torch.log(size1 / size0)), dim=-1)


def decode_boxes(boxes: Tensor, codes: Tensor) -> Tensor:
    """Invert :func:`encode_boxes`; `dh` and `dw` are clamped at `log(1000 / 16)`.

    Boxes and codes, `... x 4`, are broadcast against each other: one box with the codes of many classes is `N x 1 x 4`
    with `N x C x 4`.
    """
    check_boxes("decode_boxes", "boxes", boxes, dims=None)
    check_boxes("decode_boxes", "codes", codes, dims=None)
    size0 = boxes[..., 2:] - boxes[..., :2]
    centre0 = (boxes[..., :2] + boxes[..., 2:]) / 2
    centre = centre0 + codes[..., :2] * size0
    half = size0 * torch.exp(codes[..., 2:].clamp(max=MAX_LOG_SCALE)) / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def clip_boxes(boxes: Tensor, size: tuple[int, int] | Tensor) -> Tensor:
    """Clip boxes to an image of `size`: every corner is moved into `[0, height] x [0, width]`.

    The size is `(height, width)`, or a tensor `(height, width, height, width)` on the device of the boxes.
    """
    check_boxes("clip_boxes", "boxes", boxes, dims=None)
    if isinstance(size, Tensor):
        return torch.minimum(boxes.clamp(min=0), size)
    height, width = float(size[0]), float(size[1])
    y = boxes[..., 0::2].clamp(0, height)
    x = boxes[..., 1::2].clamp(0, width)
    return torch.stack((y, x), dim=-1).flatten(-2)


def crowd_overlap(boxes: Tensor, crowd_mask: Tensor) -> Tensor:
    """Compute the fraction of each box that is crowd: crowd pixels in the integer-truncated box over its (float) area.

    Boxes are `N x 4`, the mask `H x W` is bool or integer, non-zero on crowd pixels (docs/contract.md, section 4 "ROI
    targets"). The result, `N`, is NaN for an empty box and for one with a NaN corner.
    """
    check_boxes("crowd_overlap", "boxes", boxes)
    if crowd_mask.dim() != 2 or crowd_mask.is_floating_point() or crowd_mask.is_complex():
        raise ValueError(f"crowd_overlap: crowd_mask must be a bool or integer H x W, got {describe(crowd_mask)}")
    wide = widened(boxes)
    return (_crowd_count(wide.detach(), crowd_mask).to(wide.dtype) / box_area(wide)).to(boxes.dtype)


def crowd_fraction(boxes: Tensor, crowd: Tensor) -> Tensor:
    """Compute the fraction of each box that is crowd, `N`; NaN for an empty box.

    Crowd is a mask `H x W` as for :func:`crowd_overlap`, or floating boxes `C x 4`, C > 0, of which the one that covers
    most of a box counts.
    """
    return box_overlap(boxes, crowd).amax(dim=1) if crowd.is_floating_point() else crowd_overlap(boxes, crowd)


def smooth_l1(x: Tensor, target: Tensor, sigma: float) -> Tensor:
    """Compute the smooth L1 loss of each element: `.5 sigma² d²` where `|d| < 1/sigma²`, else `|d| - .5/sigma²`.

    `d` is `x - target`, of one shape.
    """
    if x.shape != target.shape:
        raise ValueError(f"smooth_l1: x and target must have one shape, got {describe(x)} and {describe(target)}")
    if sigma <= 0:
        raise ValueError(f"smooth_l1: sigma must be positive, got {sigma}")
    return functional.smooth_l1_loss(x, target, reduction="none", beta=1 / sigma**2)


def _fake_match(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def vector(boxes: Tensor, dtype: torch.dtype) -> Tensor:
        return boxes.new_empty((boxes.shape[0],), dtype=dtype)

    wide = torch.promote_types(a.dtype, torch.float32)
    return vector(a, wide), vector(a, torch.int64), vector(b, wide), vector(b, torch.int64)


_box_iou = define("box_iou", reference.box_iou, lambda a, b: a.new_empty((a.shape[0], b.shape[0])))
_match_boxes = define("match_boxes", reference.match_boxes, _fake_match)
_crowd_count = define(
    "crowd_count",
    reference.crowd_count,
    lambda boxes, crowd_mask: boxes.new_empty((boxes.shape[0],), dtype=torch.int64),
)
