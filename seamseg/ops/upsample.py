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
_CPU_ROWS = 32


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
        void = target == VOID
        classes = target.masked_fill(void, 0)
        entropy = torch.empty(target.shape, dtype=_wide(logits).dtype, device=logits.device)
        for start, stop in _chunks(logits, target):
            scores = _Rows(logits, padded_size, target.shape[1], start, stop).upsample()
            torch.neg(scores.log_softmax(0).gather(0, classes[None, start:stop])[0], out=entropy[start:stop])
        losses = entropy.masked_fill(void, 0).flatten()
        count = math.ceil(ohem * losses.numel())
        selected = ~void
        if count < losses.numel():
            losses, where = losses.topk(count, sorted=False)
            selected = torch.zeros_like(selected).view(-1).index_fill_(0, where, True).view_as(void) & selected
        ctx.save_for_backward(logits, classes, entropy, selected)
        ctx.settings = padded_size, count
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, classes, entropy, selected = ctx.saved_tensors
        padded_size, count = ctx.settings
        gradient = torch.zeros_like(_wide(logits))
        share = selected * (grad / count)
        for start, stop in _chunks(logits, classes):
            rows = _Rows(logits, padded_size, classes.shape[1], start, stop)
            scores, own, weight = rows.upsample(), classes[None, start:stop], share[None, start:stop]
            # softmax from the stored cross-entropy: log of the sum of exponentials = entropy + own class's score
            normaliser = entropy[None, start:stop] + scores.gather(0, own)
            difference = scores.sub_(normaliser).exp_().mul_(weight).scatter_add_(0, own, -weight)
            gradient[:, rows.first : rows.stop] += rows.adjoint(difference)
        return gradient.to(logits.dtype), None, None, None


class _Rows:
    """The rows `start .. stop - 1` of upsampled logits, and the rows of the logits they come from.

    Columns are interpolated first, while there are few rows; then a small matrix makes the rows.
    """

    def __init__(self, logits: Tensor, padded_size: tuple[int, int], valid_width: int, start: int, stop: int) -> None:
        height = logits.shape[1]
        y0, y1, weight = _taps(height, padded_size[0], stop, torch.device("cpu"))
        y0, y1, weight = y0[start:], y1[start:], weight[start:]
        self.first, self.stop = int(y0[0]), int(y1[-1]) + 1
        self.source = _wide(logits[:, self.first : self.stop]).contiguous()
        matrix = torch.zeros(stop - start, self.stop - self.first, dtype=self.source.dtype)
        for taps, part in ((y0, 1 - weight), (y1, weight)):
            matrix.scatter_add_(1, (taps - self.first)[:, None], part.to(matrix.dtype)[:, None])
        self.matrix = matrix.to(logits.device)
        self.padded_width, self.valid_width = padded_size[1], valid_width

    def upsample(self) -> Tensor:
        """`C x rows x valid width`, a new tensor."""
        size = (self.source.shape[1], self.padded_width)
        wide = functional.interpolate(self.source[None], size=size, mode="bilinear", align_corners=False)[0]
        return self.matrix @ wide[..., : self.valid_width]

    def adjoint(self, gradient: Tensor) -> Tensor:
        """`C x rows x valid width` to the gradient of `source`."""
        wide = functional.pad(self.matrix.T @ gradient, (0, self.padded_width - self.valid_width))
        shape = self.source.shape
        size = [shape[1], self.padded_width]
        return torch.ops.aten.upsample_bilinear2d_backward(wide[None], size, [1, *shape], False)[0]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


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
    if logits.device.type == "cpu":
        # the matrix that makes rows is nearly empty: a large one wastes time
        step = min(step, _CPU_ROWS)
    return [(start, min(start + step, height)) for start in range(0, height, step)]


def _check(op: str, logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> None:
    if logits.dim() != 3 or 0 in logits.shape or not logits.is_floating_point():
        raise ValueError(f"{op}: logits must be a floating C x h x w, got {describe(logits)}")
    if not all(0 < valid <= padded for valid, padded in zip(valid_size, padded_size)):
        raise ValueError(
            f"{op}: valid size {tuple(valid_size)} must be positive and inside padded size {tuple(padded_size)}"
        )
