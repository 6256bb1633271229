"""ROI sampling: one sample at the centre of each bin of a box (docs/contract.md, section 4). This is not ROIAlign.

One operator is for single maps and pyramids; its backward computes the gradients of all levels at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from seamseg.ops._library import define, widened
from seamseg.ops.reference import roi_sampling as plain

Interpolation = Literal["bilinear", "nearest"]
Padding = Literal["border", "zero"]
IN_PIXELS_OF_MAP = [0, 0]
"""The padded size for boxes in pixels of the map."""


def roi_sampling(
    x: Tensor,
    boxes: Tensor,
    index: Tensor,
    out_size: tuple[int, int],
    interpolation: Interpolation = "bilinear",
    padding: Padding = "border",
) -> Tensor:
    """Sample each box on a grid of `out_size` points, from `N x C x H x W` to `K x C x h x w`, channels last.

    Bin `(i, j)` of an `h x w` grid is sampled at `y0 + (i + .5) / h * (y1 - y0)`, x likewise, where pixel k of the map
    covers `[k, k + 1)`. A floating map is differentiable (once), half precision is summed in float32; an integer map
    needs nearest interpolation. Channels last is the fast layout.

    Boxes, `K x 4` in pixels of the map, need not lie inside, nor be finite. `index`, `K` int64, is the image of each
    box; one out of range is an error on the CPU, and reads 0 on CUDA, where a check would block the host. Outside of
    the map a sample is the nearest pixel (padding "border") or 0 ("zero").
    """
    if interpolation not in ("bilinear", "nearest") or padding not in ("border", "zero"):
        raise ValueError(
            f"roi_sampling: interpolation must be bilinear or nearest, padding border or zero, "
            f"got {interpolation!r}, {padding!r}"
        )
    boxes = widened(boxes.detach())
    nearest, zero = interpolation == "nearest", padding == "zero"
    return _roi_sampling([x], boxes, index.long(), None, IN_PIXELS_OF_MAP, *out_size, nearest, zero)


def roi_features(
    levels: Sequence[Tensor],
    boxes: Tensor,
    index: Tensor,
    level: Tensor,
    padded_size: tuple[int, int],
    out_size: tuple[int, int],
) -> Tensor:
    """Sample the features of boxes, each from its level of a pyramid (docs/contract.md, section 4 "ROI features").

    Parameters
    ----------
    levels : `N x C x H_l x W_l` feature maps of one dtype
    boxes : `K x 4`, in pixels of the padded image
    index : `K` int64, the image of each box
    level : `K` int64, the position in `levels` of each box; out of range as for `index` of :func:`roi_sampling`
    padded_size : (height, width) of the padded image
    out_size : (h, w)

    Returns
    -------
    `K x C x h x w`, channels last; K may be 0
    """
    boxes = widened(boxes.detach())
    return _roi_sampling(list(levels), boxes, index.long(), level.long(), list(padded_size), *out_size, False, False)


def _fake(levels: Sequence[Tensor], boxes: Tensor, *others: Any) -> Tensor:
    x, (height, width) = levels[0], others[3:5]
    shape = (boxes.shape[0], x.shape[1], height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _fake_backward(dy: Tensor, shapes: Sequence[int], channels_last: Sequence[bool], *others: Any) -> list[Tensor]:
    formats = [torch.channels_last if last else torch.contiguous_format for last in channels_last]
    sizes = [tuple(shapes[4 * i : 4 * i + 4]) for i in range(len(formats))]
    return [dy.new_empty(size).contiguous(memory_format=memory_format) for size, memory_format in zip(sizes, formats)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    levels, boxes, index, level, padded_size, _, _, nearest, zero = inputs
    ctx.save_for_backward(boxes, index, level)
    ctx.shapes = [side for x in levels for side in x.shape]
    last = torch.channels_last
    ctx.channels_last = [x.is_contiguous(memory_format=last) and not x.is_contiguous() for x in levels]
    ctx.options = (padded_size, nearest, zero)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    boxes, index, level = ctx.saved_tensors
    padded_size, nearest, zero = ctx.options
    # read in the backward pass, as by the operators of torch: it may change between the passes
    deterministic = torch.are_deterministic_algorithms_enabled()
    gradients = _roi_sampling_backward(
        dy, ctx.shapes, ctx.channels_last, boxes, index, level, padded_size, nearest, zero, deterministic
    )
    return gradients, *(None,) * 8


_roi_sampling_backward = define("roi_sampling_backward", plain.roi_sampling_backward, _fake_backward)
_roi_sampling = define("roi_sampling", plain.roi_sampling, _fake, _backward, _setup)
