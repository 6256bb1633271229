"""ROI sampling: one sample at the centre of each bin of a box (SPEC section 4). This is not ROIAlign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ._check import check_boxes, check_same_device, describe

Interpolation = Literal["bilinear", "nearest"]
Padding = Literal["border", "zero"]


def roi_sampling(
    x: Tensor,
    boxes: Tensor,
    index: Tensor,
    out_size: tuple[int, int],
    interpolation: Interpolation = "bilinear",
    padding: Padding = "border",
    valid_mask: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Sample each box on a grid of `out_size` points.

    Bin `(i, j)` of an `h x w` grid is sampled at `y0 + (i + .5) / h * (y1 - y0)`, x likewise, where pixel k of the map
    covers `[k, k + 1)`.

    Parameters
    ----------
    x : `N x C x H x W`; floating (differentiable), or integer with nearest interpolation
    boxes : `K x 4`, in pixels of `x`; need not lie inside, nor be finite
    index : `K` int64, the image of each box
    out_size : (h, w)
    interpolation : "bilinear" from the four neighbours, or "nearest"
    padding : outside the map stands its nearest pixel ("border") or 0 ("zero")
    valid_mask : also say which samples lie inside `[0, H) x [0, W)`

    Returns
    -------
    y : `K x C x h x w`, channels last
    mask : `K x h x w` bool, or None if not asked for
    """
    _check(x, boxes, index, out_size, interpolation, padding)
    count, (height, width) = boxes.shape[0], out_size
    y, x_ = _centres(boxes[:, 0], boxes[:, 2], height), _centres(boxes[:, 1], boxes[:, 3], width)
    rows, weights = _taps(y, x_, index, x.shape, interpolation, padding)
    table = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    if x.is_floating_point():
        samples = _Sample.apply(table, rows, weights.to(x.dtype))
    else:
        samples = table[rows[:, 0]].mul_(weights.to(x.dtype))
    mask = None
    if valid_mask:
        inside_y, inside_x = (y >= 0) & (y < x.shape[2]), (x_ >= 0) & (x_ < x.shape[3])
        mask = inside_y[:, :, None] & inside_x[:, None, :]
    return samples.view(count, height, width, x.shape[1]).permute(0, 3, 1, 2), mask


def roi_features(
    levels: Sequence[Tensor],
    boxes: Tensor,
    index: Tensor,
    level: Tensor,
    padded_size: tuple[int, int],
    out_size: tuple[int, int],
) -> Tensor:
    """Features of boxes, each from its level of a pyramid (SPEC section 4 "ROI features").

    Parameters
    ----------
    levels : `N x C x H_l x W_l` feature maps
    boxes : `K x 4`, in pixels of the padded image
    index : `K` int64, the image of each box
    level : `K` int64, the position in `levels` of each box
    padded_size : (height, width) of the padded image
    out_size : (h, w)

    Returns
    -------
    `K x C x h x w`, channels last; K may be 0
    """
    if not levels:
        raise ValueError("roi_features: levels is empty, expected at least one feature map")
    for x in levels:
        _check(x, boxes, index, out_size, "bilinear", "border")
    if level.shape != index.shape:
        raise ValueError(f"roi_features: level must be {boxes.shape[0]} integers, got {describe(level)}")
    parts, places = [], []
    for number, x in enumerate(levels):
        here = (level == number).nonzero().squeeze(1)
        if len(levels) > 1 and here.numel() == 0:
            continue
        scale = boxes.new_tensor([x.shape[-2] / padded_size[0], x.shape[-1] / padded_size[1]]).repeat(2)
        mapped = (boxes[here] - 0.5) * scale + 0.5
        parts.append(roi_sampling(x, mapped, index[here], out_size)[0])
        places.append(here)
    if not parts:
        return levels[0].new_zeros(0, levels[0].shape[1], *out_size)
    if len(parts) == 1 and places[0].numel() == boxes.shape[0]:
        return parts[0]
    return torch.cat(parts)[torch.argsort(torch.cat(places))]


def _check(
    x: Tensor, boxes: Tensor, index: Tensor, out_size: tuple[int, int], interpolation: str, padding: str
) -> None:
    if x.dim() != 4 or 0 in x.shape[2:]:
        raise ValueError(f"roi_sampling: x must be N x C x H x W with pixels, got {describe(x)}")
    check_boxes("roi_sampling", "boxes", boxes)
    if index.shape != boxes.shape[:1] or index.is_floating_point():
        raise ValueError(f"roi_sampling: index must be {boxes.shape[0]} integers, got {describe(index)}")
    check_same_device("roi_sampling", x=x, boxes=boxes, index=index)
    if min(out_size) < 1:
        raise ValueError(f"roi_sampling: out_size must be positive, got {tuple(out_size)}")
    if interpolation not in ("bilinear", "nearest") or padding not in ("border", "zero"):
        raise ValueError(
            f"roi_sampling: interpolation is bilinear or nearest, padding border or zero, "
            f"got {interpolation!r}, {padding!r}"
        )
    if interpolation == "bilinear" and not x.is_floating_point():
        raise TypeError(f"roi_sampling: bilinear needs a floating x, got {describe(x)}; use nearest")


def _centres(low: Tensor, high: Tensor, bins: int) -> Tensor:
    step = (torch.arange(bins, device=low.device, dtype=low.dtype) + 0.5) / bins
    return low[:, None] + step * (high - low)[:, None]


def axis_taps(s: Tensor, size: int, interpolation: str, padding: str) -> tuple[Tensor, Tensor]:
    """Pixels along one axis that samples at `s` read, and their weights: both `... x taps`."""
    # far and undefined coordinates would overflow the integers; they all read the same border or nothing
    s = torch.nan_to_num(s, nan=-2.0).clamp(-2, size + 2)
    if interpolation == "nearest":
        k = s.floor()
        taps, weights = k.long()[..., None], torch.ones_like(k)[..., None]
    else:
        k = (s - 0.5).floor()
        fraction = s - 0.5 - k
        first = k.long()
        taps, weights = torch.stack((first, first + 1), -1), torch.stack((1 - fraction, fraction), -1)
    if padding == "zero":
        weights = weights * ((taps >= 0) & (taps < size))
    return taps.clamp_(0, size - 1), weights


def _taps(
    y: Tensor, x: Tensor, index: Tensor, shape: torch.Size, interpolation: str, padding: str
) -> tuple[Tensor, Tensor]:
    """Rows of the `N*H*W x C` table that each sample reads and their weights: both `samples x taps`."""
    _, _, height, width = shape
    tap_y, weight_y = axis_taps(y, height, interpolation, padding)
    tap_x, weight_x = axis_taps(x, width, interpolation, padding)
    taps = tap_y.shape[-1] * tap_x.shape[-1]
    tap_y = (tap_y + index.view(-1, 1, 1) * height) * width
    rows = tap_y[:, :, None, :, None] + tap_x[:, None, :, None, :]
    weights = weight_y[:, :, None, :, None] * weight_x[:, None, :, None, :]
    return rows.reshape(-1, taps), weights.reshape(-1, taps)


class _Sample(torch.autograd.Function):
    """Weighted sums of table rows; `embedding_bag` is the vectorised kernel for that, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        ctx.table_rows = table.shape[0]
        if rows.shape[0] == 0:
            return table.new_zeros(0, table.shape[1])
        return functional.embedding_bag(rows, table.contiguous(), per_sample_weights=weights, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        rows, weights = ctx.saved_tensors
        if rows.shape[0] == 0:
            return dy.new_zeros(ctx.table_rows, dy.shape[1]), None, None
        # The adjoint gathers for each row of the table the samples that read it: sorting once beats scattered adds,
        # and adds in a fixed order
        by_row, order = rows.flatten().to(torch.int32).sort(stable=True)
        offsets = torch.searchsorted(by_row, torch.arange(ctx.table_rows, device=dy.device, dtype=torch.int32))
        dx = functional.embedding_bag(
            order // rows.shape[1],
            dy.contiguous(),
            offsets,
            per_sample_weights=weights.flatten()[order],
            mode="sum",
        )
        return dx, None, None
