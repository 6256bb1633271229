"""Argmax and loss of upsampled class logits, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import differentiable_once, wide, widened

VOID = 255
"""Class of pixels that carry no loss."""
_CPU_CHUNK = 1 << 20
_GPU_CHUNK = 1 << 26
_CPU_ROWS = 32


def upsample_argmax(logits: Tensor, padded_height: int, padded_width: int, height: int, width: int) -> Tensor:
    """See :func:`seamseg.ops.upsample.upsample_argmax`; arguments are not checked.

    Where the four neighbours of a pixel have the same class no interpolation can change it, so only the pixels along
    boundaries are interpolated. Every product is rounded before it is added: the result is the same on all devices.
    """
    classes, source_height, source_width = logits.shape
    table = logits.detach().permute(1, 2, 0).reshape(source_height * source_width, classes).contiguous()
    best = table.argmax(1).view(source_height, source_width)
    below = torch.cat((best[1:], best[-1:]))
    agree = best == below
    same_row = torch.cat((best[:, 1:], best[:, -1:]), 1) == best
    # with the column of the right neighbour: all four corners of the cell
    agree = agree & same_row & torch.cat((agree[:, 1:], agree[:, -1:]), 1)
    y0, y1, wy = _taps(source_height, padded_height, height, logits.device)
    x0, x1, wx = _taps(source_width, padded_width, width, logits.device)
    result = best[y0][:, x0]
    unsure = (~agree)[y0][:, x0].flatten().nonzero().squeeze(1)
    flat = result.view(-1)
    step = max(1, _chunk_elements(logits) // classes)
    for part in torch.split(unsure, step):
        row, column = part.div(width, rounding_mode="floor"), part % width
        down, across = (w.to(wide(table.dtype))[:, None] for w in (wy[row], wx[column]))
        sides = []
        for side in (x0[column], x1[column]):
            top, bottom = (widened(table.index_select(0, y[row] * source_width + side)) for y in (y0, y1))
            sides.append(top.mul_(1 - down).add_(bottom.mul_(down)))
        flat[part] = sides[0].mul_(1 - across).add_(sides[1].mul_(across)).argmax(1)
    return result


def upsample_fusion(logits: Sequence[Tensor], height: int, width: int, mode: str) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.upsample.upsample_fusion`; arguments are not checked."""
    classes = torch.empty((height, width), dtype=torch.int64, device=logits[0].device)
    scores = torch.empty((height, width), dtype=wide(logits[0].dtype), device=logits[0].device)
    for start, stop in _chunks(logits[0], classes):
        views = (_Rows(view, (height, width), width, start, stop).upsample().softmax(0) for view in logits)
        total = next(views)
        score, best = total.max(0)
        if mode == "mean":
            for view in views:
                total.add_(view)
            score, best = total.div_(len(logits)).max(0)
        elif mode == "max":
            for view in views:
                other_score, other = view.max(0)
                surer = other_score > score
                score, best = torch.where(surer, other_score, score), torch.where(surer, other, best)
        else:
            votes = torch.zeros_like(total).scatter_(0, best[None], 1)
            total.mul_(votes)
            for view in views:
                score, best = view.max(0)
                votes.scatter_add_(0, best[None], torch.ones_like(score)[None])
                total.scatter_add_(0, best[None], score[None])
            number, best = votes.max(0)
            score = total.gather(0, best[None])[0] / number
        scores[start:stop], classes[start:stop] = score, best
    return classes, scores


FUSIONS = ("mean", "max", "voting")
"""Modes of :func:`upsample_fusion`."""


class _CrossEntropy(torch.autograd.Function):
    """Losses of the pixels, which are upsampled again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, padded_size: tuple[int, int], target: Tensor) -> Tensor:
        void, classes = _void_and_classes(logits, target, "upsample_cross_entropy")
        entropy, normaliser = _entropy_and_normaliser(logits, padded_size, classes)
        ctx.save_for_backward(logits, void, classes, normaliser)
        ctx.padded_size = padded_size
        return entropy.masked_fill_(void, 0)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, None, None]:
        logits, void, classes, normaliser = saved
        gradient = _entropy_gradient(logits, ctx.padded_size, classes, normaliser, grad.masked_fill(void, 0))
        return gradient.to(logits.dtype), None, None


def upsample_cross_entropy(logits: Tensor, padded_size: tuple[int, int], target: Tensor) -> Tensor:
    """See :func:`seamseg.ops.upsample.upsample_cross_entropy`; arguments are not checked, except for the classes."""
    losses: Tensor = _CrossEntropy.apply(logits, padded_size, target)
    return losses


def upsample_ohem_loss(
    logits: Tensor, padded_height: int, padded_width: int, target: Tensor, ohem: float
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.upsample.upsample_ohem_loss`; arguments are not checked, except for the classes.

    The second result, `H x W`, is the log of the sum of the exponentials of the scores of the pixels that carry
    gradient, inf elsewhere.
    """
    void, classes = _void_and_classes(logits, target)
    entropy, normaliser = _entropy_and_normaliser(logits, (padded_height, padded_width), classes)
    losses = entropy.masked_fill(void, 0).flatten()
    count = math.ceil(ohem * losses.numel())
    selected = ~void
    if count < losses.numel():
        losses, where = losses.topk(count, sorted=False)
        selected = torch.zeros_like(selected).view(-1).index_fill_(0, where, True).view_as(void) & selected
    return losses.mean(), normaliser.masked_fill_(~selected, torch.inf)


def upsample_ohem_loss_backward(
    grad: Tensor, logits: Tensor, padded_height: int, padded_width: int, target: Tensor, normaliser: Tensor, ohem: float
) -> Tensor:
    """Compute the gradient of :func:`upsample_ohem_loss`: `C x h x w`, float32 for logits of half precision."""
    void, classes = _void_and_classes(logits, target)
    selected = ~(void | (normaliser == torch.inf))
    share = selected * (grad / math.ceil(ohem * target.numel()))
    finite = normaliser.masked_fill(~selected, 0)
    return _entropy_gradient(logits, (padded_height, padded_width), classes, finite, share)


def _entropy_and_normaliser(logits: Tensor, padded_size: tuple[int, int], classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each pixel, and the log of the sum of the exponentials of its scores, `H x W`."""
    entropy = torch.empty(classes.shape, dtype=wide(logits.dtype), device=logits.device)
    normaliser = torch.empty_like(entropy)
    for start, stop in _chunks(logits, classes):
        scores = _Rows(logits, padded_size, classes.shape[1], start, stop).upsample()
        own = classes[None, start:stop]
        torch.neg(scores.log_softmax(0).gather(0, own)[0], out=entropy[start:stop])
        torch.add(entropy[start:stop], scores.gather(0, own)[0], out=normaliser[start:stop])
    return entropy, normaliser


def _entropy_gradient(
    logits: Tensor, padded_size: tuple[int, int], classes: Tensor, normaliser: Tensor, share: Tensor
) -> Tensor:
    """Return the gradient of the sum of the cross-entropies of the pixels, each weighted by its `share`."""
    gradient = torch.zeros(logits.shape, dtype=normaliser.dtype, device=logits.device)
    counted = share != 0
    for start, stop in _chunks(logits, classes):
        rows = _Rows(logits, padded_size, classes.shape[1], start, stop)
        own, weight = classes[None, start:stop], share[None, start:stop]
        exponents = rows.upsample().sub_(normaliser[None, start:stop])
        exponents = exponents.masked_fill_(~counted[None, start:stop], -torch.inf)
        difference = exponents.exp_().mul_(weight).scatter_add_(0, own, -weight)
        gradient[:, rows.first : rows.stop] += rows.adjoint(difference)
    return gradient


def _void_and_classes(logits: Tensor, target: Tensor, op: str = "upsample_ohem_loss") -> tuple[Tensor, Tensor]:
    void = target == VOID
    wrong = ~void & ((target < 0) | (target >= logits.shape[0]))
    if target.device.type == "cpu":
        if wrong.any():
            raise ValueError(
                f"{op}: target must hold classes 0 to {logits.shape[0] - 1}, or 255 for void, "
                f"got {int(target[wrong][0])}"
            )
    else:
        void = void | wrong
    return void, target.masked_fill(void, 0)


class _Rows:
    """The rows `start .. stop - 1` of upsampled logits, and the rows of the logits they come from.

    Columns are interpolated first, while there are few rows; then a product with a small matrix interpolates the rows.
    """

    def __init__(self, logits: Tensor, padded_size: tuple[int, int], valid_width: int, start: int, stop: int) -> None:
        height = logits.shape[1]
        y0, y1, weight = _taps(height, padded_size[0], stop, torch.device("cpu"))
        y0, y1, weight = y0[start:], y1[start:], weight[start:]
        self.first, self.stop = int(y0[0]), int(y1[-1]) + 1
        self.source = widened(logits[:, self.first : self.stop]).contiguous()
        matrix = torch.zeros(stop - start, self.stop - self.first, dtype=self.source.dtype)
        for taps, part in ((y0, 1 - weight), (y1, weight)):
            matrix.scatter_add_(1, (taps - self.first)[:, None], part.to(matrix.dtype)[:, None])
        self.matrix = matrix.to(logits.device)
        self.padded_width, self.valid_width = padded_size[1], valid_width

    def upsample(self) -> Tensor:
        """Compute `C x rows x valid width`, a new tensor."""
        size = (self.source.shape[1], self.padded_width)
        wide = functional.interpolate(self.source[None], size=size, mode="bilinear", align_corners=False)[0]
        return self.matrix @ wide[..., : self.valid_width]

    def adjoint(self, gradient: Tensor) -> Tensor:
        """Map a gradient `C x rows x valid width` to the gradient of `source`."""
        wide = functional.pad(self.matrix.T @ gradient, (0, self.padded_width - self.valid_width))
        shape = self.source.shape
        size = [shape[1], self.padded_width]
        gradients: Tensor = torch.ops.aten.upsample_bilinear2d_backward(wide[None], size, [1, *shape], False)
        return gradients[0]


def _taps(size: int, padded: int, valid: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Compute for the first `valid` output pixels of an axis their two source pixels and the weight of the second."""
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
        # the matrix of the rows is sparse: a large one wastes time
        step = min(step, _CPU_ROWS)
    return [(start, min(start + step, height)) for start in range(0, height, step)]
