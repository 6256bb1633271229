"""Argmax and loss of upsampled class logits, which are never stored (docs/contract.md, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seamseg.ops._library import define, describe, wide
from seamseg.ops.reference import upsample as plain
from seamseg.ops.reference.upsample import FUSIONS as FUSIONS  # part of the interface


def upsample_argmax(logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> Tensor:
    """Compute the best class of each pixel of an image, from logits of lower resolution.

    For finite logits it equals `interpolate(logits, padded_size, mode="bilinear", align_corners=False)` cut to the
    valid size, then argmax (the first of equal classes; NaN above all), except for classes that are equal within
    rounding. Half precision is interpolated in float32. Has no gradient.

    Map `C x h x w`, which cover the padded image, to int64 `H x W` of the valid size in its upper left corner; sizes
    are (height, width).
    """
    _check("upsample_argmax", logits, padded_size, valid_size)
    return _upsample_argmax(logits.detach(), *padded_size, *valid_size)


def upsample_fusion(logits: Sequence[Tensor], size: tuple[int, int], mode: str = "mean") -> tuple[Tensor, Tensor]:
    """Compute the class of each pixel, and its probability, from several views of an image.

    Each view's logits are upsampled bilinearly (`align_corners` off) and normalised by softmax, some rows at a time:
    memory does not grow with classes times pixels. The first of equal classes wins. Has no gradient. Views are
    `C x h x w`, each of the whole image, of any size; classes are int64 `H x W`, probabilities `H x W`, float32 for
    logits of half precision.

    Mode "mean" takes the class of highest mean probability; "max" class and probability of the most confident view, the
    first of equal ones; "voting" the class that most views find best, with the mean of their probabilities.
    """
    if mode not in FUSIONS:
        raise ValueError(f"upsample_fusion: mode must be one of {', '.join(FUSIONS)}, got {mode!r}")
    if not logits or len({(x.shape[0], x.device) for x in logits}) > 1:
        raise ValueError("upsample_fusion: logits must be one or more views with the same classes on one device")
    for view in logits:
        _check("upsample_fusion", view, size, size)
    with torch.no_grad():
        return plain.upsample_fusion(logits, *size, mode)


def upsample_cross_entropy(
    logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int], target: Tensor
) -> Tensor:
    """Compute the cross-entropy of each pixel of an image, from logits of lower resolution.

    Arguments and errors as for :func:`upsample_ohem_loss`; as there, memory does not grow with classes times pixels.
    The result is `H x W`, 0 for void pixels; float32 for logits of half precision.
    """
    _check("upsample_cross_entropy", logits, padded_size, valid_size, target)
    return plain.upsample_cross_entropy(logits, padded_size, target)


def upsample_ohem_loss(
    logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int], target: Tensor, ohem: float | None = None
) -> Tensor:
    """Compute the cross-entropy of the upsampled logits of one image, averaged over its hardest pixels.

    Logits are upsampled bilinearly (`align_corners` off) to the padded size and cut to the valid size, some rows at a
    time, in the forward pass and again in the backward pass: memory does not grow with classes times pixels. Half
    precision is interpolated and summed in float32. Both passes compute the same bits for any number of threads.

    Logits are `C x h x w`; sizes are (height, width), the valid one in the upper left corner of the padded one. The
    target is int64 `H x W` of the valid size; void (255) pixels have loss 0 but are counted. `ohem` is the fraction of
    the pixels to average, largest loss first (rounded up), None for all. The scalar is differentiable once; float32 for
    logits of half precision. A class out of range is an error on the CPU, and void on a GPU, where the host would wait
    for the check.
    """
    _check("upsample_ohem_loss", logits, padded_size, valid_size, target)
    if ohem is not None and not 0 < ohem <= 1:
        raise ValueError(f"upsample_ohem_loss: ohem must be in (0, 1] or None, got {ohem}")
    return _upsample_ohem_loss(logits, *padded_size, target, 1.0 if ohem is None else float(ohem))[0]


def _check(
    op: str, logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int], target: Tensor | None = None
) -> None:
    if logits.dim() != 3 or 0 in logits.shape or not logits.is_floating_point():
        raise ValueError(f"{op}: logits must be a floating C x h x w, got {describe(logits)}")
    if not all(0 < valid <= padded for valid, padded in zip(valid_size, padded_size)):
        raise ValueError(
            f"{op}: valid size {tuple(valid_size)} must be positive and inside padded size {tuple(padded_size)}"
        )
    if target is not None and (tuple(target.shape) != tuple(valid_size) or target.dtype != torch.int64):
        raise ValueError(f"{op}: target must be int64 of shape {valid_size[0]}x{valid_size[1]}, got {describe(target)}")


_upsample_argmax = define(
    "upsample_argmax",
    plain.upsample_argmax,
    lambda logits, padded_height, padded_width, *size: logits.new_empty(size, dtype=torch.int64),
)
_upsample_ohem_loss_backward = define(
    "upsample_ohem_loss_backward",
    plain.upsample_ohem_loss_backward,
    lambda grad, logits, *rest: logits.new_empty(logits.shape, dtype=wide(logits.dtype)),
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, *ctx.padded_size, target, ctx.ohem = inputs
    ctx.save_for_backward(logits, target, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None, None, None]:
    logits, target, normaliser = ctx.saved_tensors
    height, width = ctx.padded_size
    gradient = _upsample_ohem_loss_backward(grad, logits, height, width, target, normaliser, ctx.ohem)
    return gradient.to(logits.dtype), None, None, None, None


_upsample_ohem_loss = define(
    "upsample_ohem_loss",
    plain.upsample_ohem_loss,
    lambda logits, padded_height, padded_width, target, ohem: (
        logits.new_empty((), dtype=wide(logits.dtype)),
        logits.new_empty(target.shape, dtype=wide(logits.dtype)),
    ),
    _backward,
    _setup,
)
