"""ROI sampling in plain torch, forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import widened


def roi_sampling(
    levels: Sequence[Tensor],
    boxes: Tensor,
    index: Tensor,
    level: Tensor | None,
    padded_size: Sequence[int],
    height: int,
    width: int,
    nearest: bool,
    zero: bool,
) -> Tensor:
    """Compute :func:`seamseg.ops.roi_sampling.roi_sampling` and `roi_features`.

    `level` is the position in `levels` of each box, None for level 0; `padded_size` the (height, width) of the image
    that the boxes refer to, zeros if they are in pixels of their level.
    """
    count, channels = boxes.shape[:1], levels[0].shape[1]
    if boxes.shape[1:] != (4,) or index.shape != count or (level is not None and level.shape != count):
        raise RuntimeError("roi_sampling: boxes must be K x 4, index and level K")
    if any(x.dim() != 4 or x.shape[1] != channels or x.dtype != levels[0].dtype for x in levels):
        raise RuntimeError("roi_sampling: levels must be N x C x H x W, of one number of channels and dtype")
    out = levels[0].new_zeros(boxes.shape[0], height, width, channels)
    shapes = [x.shape for x in levels]
    for number, here, rows, weights in _taps(shapes, boxes, index, level, padded_size, height, width, nearest, zero):
        table = levels[number].permute(0, 2, 3, 1).flatten(0, 2)
        if nearest:
            samples = table[rows[:, 0]].mul_(weights.to(table.dtype))
        else:
            table = widened(table).contiguous()
            samples = functional.embedding_bag(rows, table, per_sample_weights=weights.to(table.dtype), mode="sum")
        out[here] = torch.unflatten(samples, 0, (-1, height, width)).to(out.dtype)
    return out.permute(0, 3, 1, 2)


def roi_sampling_backward(
    dy: Tensor,
    shapes: Sequence[int],
    channels_last: Sequence[bool],
    boxes: Tensor,
    index: Tensor,
    level: Tensor | None,
    padded_size: Sequence[int],
    nearest: bool,
    zero: bool,
    deterministic: bool,
) -> list[Tensor]:
    """Compute the gradients of all levels from `K x C x height x width`; always deterministic.

    `shapes` has four numbers a level, its `N, C, H, W`; `channels_last` says which gradients have this memory format.
    """
    sizes = [torch.Size(shapes[i : i + 4]) for i in range(0, len(shapes), 4)]
    height, width = dy.shape[2:]
    tables = [dy.new_zeros(n * h * w, c) for n, c, h, w in sizes]
    for number, here, rows, weights in _taps(sizes, boxes, index, level, padded_size, height, width, nearest, zero):
        weighted = widened(dy[here].permute(0, 2, 3, 1).flatten(0, 2)).contiguous()
        # the adjoint gathers for each row of the table the samples that read it: sorting once is faster than scattered
        # adds, and the order of the sum is fixed
        by_row, order = rows.flatten().sort(stable=True)
        table_rows = torch.arange(tables[number].shape[0], device=dy.device)
        tables[number] = functional.embedding_bag(
            order // rows.shape[1],
            weighted,
            torch.searchsorted(by_row, table_rows),
            per_sample_weights=weights.flatten()[order].to(weighted.dtype),
            mode="sum",
        ).to(dy.dtype)
    gradients = []
    for table, (n, c, h, w), last in zip(tables, sizes, channels_last):
        memory_format = torch.channels_last if last else torch.contiguous_format
        dx = dy.new_empty(n, c, h, w).to(memory_format=memory_format)
        gradients.append(dx.copy_(table.view(n, h, w, c).permute(0, 3, 1, 2)))
    return gradients


def _axis_taps(s: Tensor, size: int, nearest: bool, zero: bool) -> tuple[Tensor, Tensor]:
    """Compute the pixels along one axis that samples at `s` read, and their weights: both `... x taps`."""
    # far and undefined coordinates would overflow the integers; all of them read the border or nothing
    s = torch.nan_to_num(s, nan=-2.0).clamp(-2, size + 2)
    if nearest:
        k = s.floor()
        taps, weights = k.long()[..., None], torch.ones_like(k)[..., None]
    else:
        k = (s - 0.5).floor()
        fraction = s - 0.5 - k
        first = k.long()
        taps, weights = torch.stack((first, first + 1), -1), torch.stack((1 - fraction, fraction), -1)
    if zero:
        weights = weights * ((taps >= 0) & (taps < size))
    return taps.clamp_(0, size - 1), weights


def _centres(low: Tensor, high: Tensor, bins: int) -> Tensor:
    step = (torch.arange(bins, device=low.device, dtype=low.dtype) + 0.5) / bins
    return low[:, None] + step * (high - low)[:, None]


def _taps(
    shapes: Sequence[torch.Size],
    boxes: Tensor,
    index: Tensor,
    level: Tensor | None,
    padded_size: Sequence[int],
    height: int,
    width: int,
    nearest: bool,
    zero: bool,
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield for each used level: its number, the boxes on it, rows of its `N*H*W x C` table and their weights.

    Rows and weights are `samples x taps`. On the CPU an image or a level out of range is an error; elsewhere, where a
    check would block the host, such a box reads nothing.
    """
    if level is None:
        level = torch.zeros_like(index)
    if boxes.device.type == "cpu" and ((level < 0) | (level >= len(shapes))).any():
        raise RuntimeError(f"roi_sampling: level must be 0 to {len(shapes) - 1}, got {level.tolist()}")
    for number, (images, _, map_height, map_width) in enumerate(shapes):
        here = (level == number).nonzero().squeeze(1)
        known = (index[here] >= 0) & (index[here] < images)
        if boxes.device.type == "cpu" and not known.all():
            raise RuntimeError(f"roi_sampling: index must be 0 to {images - 1}, got {index[here].tolist()}")
        here = here[known]
        if here.numel() == 0:
            continue
        corners = boxes[here]
        if padded_size[0]:
            scale = boxes.new_tensor([map_height / padded_size[0], map_width / padded_size[1]]).repeat(2)
            corners = (corners - 0.5) * scale + 0.5
        tap_y, weight_y = _axis_taps(_centres(corners[:, 0], corners[:, 2], height), map_height, nearest, zero)
        tap_x, weight_x = _axis_taps(_centres(corners[:, 1], corners[:, 3], width), map_width, nearest, zero)
        taps = tap_y.shape[-1] * tap_x.shape[-1]
        tap_y = (tap_y + index[here].view(-1, 1, 1) * map_height) * map_width
        rows = tap_y[:, :, None, :, None] + tap_x[:, None, :, None, :]
        weights = weight_y[:, :, None, :, None] * weight_x[:, None, :, None, :]
        yield number, here, rows.reshape(-1, taps), weights.reshape(-1, taps)
