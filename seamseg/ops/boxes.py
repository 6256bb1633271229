"""Algebra of boxes `(y0, x0, y1, x1)`: areas, overlaps, the regression code (SPEC section 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._check import check_boxes, check_same_device, describe

MAX_LOG_SCALE = math.log(1000 / 16)
"""Upper bound of the `dh` and `dw` of a code when decoding."""
MIN_ANCHOR_SIDE = 1e-5
"""Sides of the reference box are at least this, in pixels, when encoding."""


def box_area(boxes: Tensor) -> Tensor:
    """Signed area of boxes, in pixels: `... x 4` to `...`."""
    check_boxes("box_area", "boxes", boxes, dims=None)
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    # axis by axis: an N x M x 2 intermediate costs twice the time
    height = torch.minimum(a[:, None, 2], b[None, :, 2]).sub_(torch.maximum(a[:, None, 0], b[None, :, 0])).clamp_(min=0)
    width = torch.minimum(a[:, None, 3], b[None, :, 3]).sub_(torch.maximum(a[:, None, 1], b[None, :, 1])).clamp_(min=0)
    return height.mul_(width)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every pair of boxes.

    Parameters
    ----------
    a, b : `N x 4` and `M x 4`

    Returns
    -------
    `N x M`; NaN where both boxes are empty
    """
    check_boxes("box_iou", "a", a)
    check_boxes("box_iou", "b", b)
    check_same_device("box_iou", a=a, b=b)
    inter = _intersection(a, b)
    union = (box_area(a)[:, None] + box_area(b)[None]).sub_(inter)
    return inter.div_(union)


def box_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection of every pair of boxes over the area of the first of them.

    Parameters
    ----------
    a, b : `N x 4` and `M x 4`

    Returns
    -------
    `N x M`; NaN where the box of `a` is empty
    """
    check_boxes("box_overlap", "a", a)
    check_boxes("box_overlap", "b", b)
    check_same_device("box_overlap", a=a, b=b)
    return _intersection(a, b).div_(box_area(a)[:, None])


def encode_boxes(anchors: Tensor, targets: Tensor) -> Tensor:
    """The code that takes `anchors` to `targets` (SPEC section 4 "Box code").

    Parameters
    ----------
    anchors, targets : `... x 4`, broadcast against each other

    Returns
    -------
    `... x 4` codes `(dy, dx, dh, dw)`: shift of the centre in sides of the anchor, log of the ratio of sides
    """
    check_boxes("encode_boxes", "anchors", anchors, dims=None)
    check_boxes("encode_boxes", "targets", targets, dims=None)
    check_same_device("encode_boxes", anchors=anchors, targets=targets)
    size0 = (anchors[..., 2:] - anchors[..., :2]).clamp(min=MIN_ANCHOR_SIDE)
    size1 = targets[..., 2:] - targets[..., :2]
    centre0 = (anchors[..., :2] + anchors[..., 2:]) / 2
    centre1 = (targets[..., :2] + targets[..., 2:]) / 2
    return torch.cat(((centre1 - centre0) / size0, torch.log(size1 / size0)), dim=-1)


def decode_boxes(boxes: Tensor, codes: Tensor) -> Tensor:
    """The inverse of :func:`encode_boxes`; `dh` and `dw` are clamped at `log(1000 / 16)`.

    Parameters
    ----------
    boxes, codes : `... x 4`, broadcast against each other (one box with the codes of many classes: `N x 1 x 4` and
        `N x C x 4`)

    Returns
    -------
    `... x 4` boxes
    """
    check_boxes("decode_boxes", "boxes", boxes, dims=None)
    check_boxes("decode_boxes", "codes", codes, dims=None)
    check_same_device("decode_boxes", boxes=boxes, codes=codes)
    size0 = boxes[..., 2:] - boxes[..., :2]
    centre0 = (boxes[..., :2] + boxes[..., 2:]) / 2
    centre = centre0 + codes[..., :2] * size0
    half = size0 * torch.exp(codes[..., 2:].clamp(max=MAX_LOG_SCALE)) / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def clip_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes cut to an image of `size` (height, width): every corner moved into `[0, height] x [0, width]`."""
    check_boxes("clip_boxes", "boxes", boxes, dims=None)
    height, width = float(size[0]), float(size[1])
    y = boxes[..., 0::2].clamp(0, height)
    x = boxes[..., 1::2].clamp(0, width)
    return torch.stack((y, x), dim=-1).flatten(-2)


def crowd_overlap(boxes: Tensor, crowd_mask: Tensor) -> Tensor:
    """Part of each box that is crowd: crowd pixels in the integer-truncated box over the box's (float) area.

    One integral image serves all boxes (SPEC section 4 "ROI targets").

    Parameters
    ----------
    boxes : `N x 4`
    crowd_mask : `H x W`, bool or integer, non-zero on crowd pixels

    Returns
    -------
    `N`; NaN for an empty box
    """
    check_boxes("crowd_overlap", "boxes", boxes)
    if crowd_mask.dim() != 2 or crowd_mask.is_floating_point():
        raise ValueError(f"crowd_overlap: crowd_mask must be a bool or integer H x W, got {describe(crowd_mask)}")
    check_same_device("crowd_overlap", boxes=boxes, crowd_mask=crowd_mask)
    height, width = crowd_mask.shape
    integral = torch.zeros(height + 1, width + 1, dtype=torch.int64, device=boxes.device)
    integral[1:, 1:] = (crowd_mask != 0).cumsum(0).cumsum(1)
    y0, x0, y1, x1 = clip_boxes(boxes, (height, width)).to(torch.int64).unbind(-1)
    count = integral[y1, x1] - integral[y0, x1] - integral[y1, x0] + integral[y0, x0]
    return count.to(boxes.dtype) / box_area(boxes)


def invert_boxes(boxes: Tensor, roi_size: tuple[int, int], image_size: tuple[int, int]) -> Tensor:
    """The image plane seen from each box: where the image's corners lie on a `roi_size` grid spread over the box.

    Sampling a mask with the inverted box pastes it onto the image (SPEC section 4 "Fusion").

    Parameters
    ----------
    boxes : `N x 4`, image pixels
    roi_size, image_size : (height, width)

    Returns
    -------
    `N x 4`, in cells of the grid; not finite for an empty box
    """
    check_boxes("invert_boxes", "boxes", boxes)
    grid = boxes.new_tensor(roi_size)
    image = boxes.new_tensor(image_size)
    size = boxes[:, 2:] - boxes[:, :2]
    return torch.cat((-boxes[:, :2] / size * grid, (image - boxes[:, :2]) / size * grid), dim=1)
