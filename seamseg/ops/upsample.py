"""What is wanted of upsampled class logits, without ever holding them: their argmax and their loss (SPEC section 4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ._check import check_same_device, describe

VOID = 255
"""Class of pixels that carry no loss."""
_CPU_CHUNK = 1 << 20
_GPU_CHUNK = 1 << 26


def upsample_argmax(logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> Tensor:
    """The best class of each pixel of an image, from logits of lower resolution.

    Equals `interpolate(logits, padded_size, mode="bilinear", align_corners=False)` cut to the valid size, then argmax.
    Where the four neighbours of a pixel agree on the class no interpolation can change it, so only the pixels along
    boundaries are interpolated.

    Parameters
    ----------
    logits : `C x h x w`, floating
    padded_size : (height, width) of the padded image, which the logits cover
    valid_size : (height, width) of the image in its upper left corner

    Returns
    -------
    `H x W` int64, of the valid size
    """
    _check("upsample_argmax", logits, padded_size, valid_size)
    classes, height, width = logits.shape
    table = logits.detach().permute(1, 2, 0).reshape(height * width, classes).contiguous()
    best = table.argmax(1).view(height, width)
    below = torch.cat((best[1:], best[-1:]))
    agree = best == below
    same_row = torch.cat((best[:, 1:], best[:, -1:]), 1) == best
    # with the right neighbour's column: all four corners of the cell
    agree = agree & same_row & torch.cat((agree[:, 1:], agree[:, -1:]), 1)
    y0, y1, wy = _taps(height, padded_size[0], valid_size[0], logits.device)
    x0, x1, wx = _taps(width, padded_size[1], valid_size[1], logits.device)
    result = best[y0][:, x0]
    unsure = (~agree)[y0][:, x0].flatten().nonzero().squeeze(1)
    flat = result.view(-1)
    step = max(1, _chunk_elements(logits) // classes)
    for part in unsure.split(step):
        row, column = part.div(valid_size[1], rounding_mode="floor"), part % valid_size[1]
        top, bottom = y0[row] * width, y1[row] * width
        left, right = x0[column], x1[column]
        down, across = wy[row], wx[column]
        taps = torch.stack((top + left, top + right, bottom + left, bottom + right), 1)
        weights = torch.stack(((1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across), 1)
        values = functional.embedding_bag(taps, table, per_sample_weights=weights.to(table.dtype), mode="sum")
        flat[part] = values.argmax(1)
    return result


def upsample_ohem_loss(
    logits: Tensor,
    padded_size: tuple[int, int],
    valid_size: tuple[int, int],
    target: Tensor,
    ohem: float | None = None,
) -> Tensor:
    """Cross-entropy of one image's upsampled logits, averaged over its hardest pixels.

    Logits are upsampled bilinearly (`align_corners` off) to the padded size and cut to the valid size, some rows at a
    time, in the forward pass and again in the backward pass: memory does not grow with classes times pixels.

    Parameters
    ----------
    logits : `C x h x w`, floating
    padded_size, valid_size : (height, width) of the padded image and of the image in its upper left corner
    target : `H x W` int64 of the valid size; void (255) pixels have loss 0 but are counted
    ohem : part of the pixels to average over, those of largest loss (rounded up); None for all

    Returns
    -------
    scalar, differentiable with respect to the logits
    """
    _check("upsample_ohem_loss", logits, padded_size, valid_size)
    if tuple(target.shape) != tuple(valid_size) or target.dtype != torch.int64:
        raise ValueError(
            f"upsample_ohem_loss: target must be int64 of shape {valid_size[0]}x{valid_size[1]}, got {describe(target)}"
        )
    check_same_device("upsample_ohem_loss", logits=logits, target=target)
    if ohem is not None and not 0 < ohem <= 1:
        raise ValueError(f"upsample_ohem_loss: ohem must be in (0, 1] or None, got {ohem}")
    return _UpsampleOhemLoss.apply(logits, tuple(padded_size), target, 1.0 if ohem is None else ohem)


class _UpsampleOhemLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, padded_size: tuple[int, int], target: Tensor, ohem: float) -> Tensor:
        rows = [_row_losses(logits, padded_size, target, start, stop)[0] for start, stop in _chunks(logits, target)]
        losses = torch.cat([row.flatten() for row in rows])
        count = math.ceil(ohem * losses.numel())
        hardest = losses
        selected = None
        if count < losses.numel():
            hardest, where = losses.topk(count, sorted=False)
            selected = torch.zeros_like(losses, dtype=torch.bool)
            selected[where] = True
            selected = selected.view(target.shape)
        ctx.save_for_backward(logits, target, selected)
        ctx.settings = padded_size, count
        return hardest.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, selected = ctx.saved_tensors
        padded_size, count = ctx.settings
        gradient = torch.zeros_like(logits)
        share = grad / count
        for start, stop in _chunks(logits, target):
            with torch.enable_grad():
                losses, source, first = _row_losses(logits, padded_size, target, start, stop, differentiable=True)
            weight = share.expand_as(losses) if selected is None else selected[start:stop] * share
            (part,) = torch.autograd.grad(losses, source, weight.to(losses.dtype))
            gradient[:, first : first + part.shape[1]] += part
        return gradient, None, None, None


def _row_losses(
    logits: Tensor, padded_size: tuple[int, int], target: Tensor, start: int, stop: int, differentiable: bool = False
) -> tuple[Tensor, Tensor, int]:
    """Losses of the rows `start .. stop - 1` of an image, the rows of the logits they come from, and their first."""
    height, width = logits.shape[1:]
    y0, y1, wy = _taps(height, padded_size[0], stop, logits.device)
    y0, y1, wy = y0[start:], y1[start:], wy[start:]
    first, last = _source(start, height, padded_size[0]), min(_source(stop - 1, height, padded_size[0]) + 1, height - 1)
    source = logits[:, first : last + 1].detach()
    if differentiable:
        source.requires_grad_()
    wide = source.float() if source.dtype in (torch.float16, torch.bfloat16) else source
    down = torch.lerp(wide[:, y0 - first], wide[:, y1 - first], wy.to(wide.dtype)[:, None])
    if padded_size[1] != width:
        size = (stop - start, padded_size[1])
        down = functional.interpolate(down[None], size=size, mode="bilinear", align_corners=False)[0]
    scores = down[None, :, :, : target.shape[1]]
    losses = functional.cross_entropy(scores, target[None, start:stop], ignore_index=VOID, reduction="none")[0]
    return losses, source, first


def _source(position: int, size: int, padded: int) -> int:
    """The first of the two rows that output row `position` reads; must agree with `_taps`."""
    return int(_taps(size, padded, position + 1, torch.device("cpu"))[0][-1])


def _taps(size: int, padded: int, valid: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each of the first `valid` output pixels along an axis: its two source pixels and the second one's weight."""
    scale = size / padded
    position = ((torch.arange(valid, device=device, dtype=torch.float32) + 0.5) * scale - 0.5).clamp_(min=0)
    first = position.long().clamp_(max=size - 1)
    return first, (first + 1).clamp_(max=size - 1), position - first


def _chunk_elements(logits: Tensor) -> int:
    return _CPU_CHUNK if logits.device.type == "cpu" else _GPU_CHUNK


def _chunks(logits: Tensor, target: Tensor) -> list[tuple[int, int]]:
    height, width = target.shape
    step = max(1, _chunk_elements(logits) // (logits.shape[0] * width))
    return [(start, min(start + step, height)) for start in range(0, height, step)]


def _check(op: str, logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> None:
    if logits.dim() != 3 or 0 in logits.shape or not logits.is_floating_point():
        raise ValueError(f"{op}: logits must be a floating C x h x w, got {describe(logits)}")
    if not all(0 < valid <= padded for valid, padded in zip(valid_size, padded_size)):
        raise ValueError(
            f"{op}: valid size {tuple(valid_size)} must be positive and inside padded size {tuple(padded_size)}"
        )
