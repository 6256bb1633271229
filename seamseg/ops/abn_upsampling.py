"""A 2x2 transposed convolution with in-place ABN for some rows of a batch, with the statistics of all rows.

The mask branch enlarges the features of all sampled regions, but only the positive ones get a mask; the others only
contribute to the batch statistics. The convolution's windows do not overlap, so it is four matrices `W_k` applied to
the pixels `x`: the mean of its output is `W_k^T mean(x)`, its variance the diagonal of `W_k^T Cov(x) W_k`, and since
the gradient through the statistics is affine in the output, its contribution to all regions is affine in `x`. A `C x C`
covariance thus replaces a map that is four times as large as the input, in the backward pass as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import differentiable_once
from seamseg.ops.abn import (
    ChannelStatistics,
    Norm,
    batch_statistics,
    bias_of,
    dense,
    gradient_sums,
    transform,
)
from seamseg.ops.abn_kernel_gradient import scale_gradient
from seamseg.ops.abn_recompute import cached_statistics
from seamseg.ops.abn_steps import abn_backward_input
from seamseg.ops.reference import wide

_PIXELS = 8192
"""Pixels whose products are summed at once."""


def upsample_abn_rows(
    x: Tensor, rows: Tensor, kernel: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> Tensor:
    """Compute `abn(conv_transpose2d(x, kernel, stride=2))[rows]`, with batch statistics over all of `x`.

    Map `N x C x h x w` (channels last is fastest) with a kernel `C x D x 2 x 2` to `P x D x 2h x 2w`; `rows` are int64
    `P`, no row twice. The norm must not have frozen statistics.
    """
    if not norm.training:
        raise ValueError("upsample_abn_rows: statistics are frozen, select the rows before the convolution instead")
    y: Tensor = _UpsampleABN.apply(x, rows, kernel, weight, bias, norm)
    return y


class _UpsampleABN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, kernel: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
    ) -> Tensor:
        pixels, taps = _pixels(x), _taps(kernel, x)
        with torch.autocast(x.device.type, enabled=False):
            centre, scatter = _moments(pixels, taps.dtype)
            means = centre @ taps
            mean = means.mean(0)
            spread = ((scatter @ taps) * taps).sum(1) / max(pixels.shape[0], 1)
            var = (spread + (means - mean) ** 2).mean(0)
            statistics, scale = cached_statistics(batch_statistics, mean, var, 4 * pixels.shape[0], weight, norm)
            chosen = functional.conv_transpose2d(x[rows], kernel.to(x.dtype), stride=2)
            y = transform(dense(chosen), None, scale, bias, norm, statistics)
        ctx.norm = norm
        mean, invstd, total, _ = statistics
        ctx.save_for_backward(x, rows, kernel, weight, bias, y, centre, scatter, mean, invstd, total)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, kernel, weight, bias, y, centre, scatter, mean, invstd, total = saved
        norm, pixels, taps = ctx.norm, _pixels(x), _taps(kernel, x)
        statistics = ChannelStatistics(mean, invstd, total, 4 * pixels.shape[0])
        dy = dense(dy, like=y)
        sums = gradient_sums(dy, y, None, weight, bias, norm, statistics, True)

        # gradient of an output pixel by the statistics: offset + slope x_hat = constant + factor (x - centre) W_k
        factor = sums.slope * invstd
        constant = sums.offset + factor * (centre @ taps - mean)[:, None]
        matrix = (taps * factor @ taps.mT).sum(0)
        shift = (constant @ taps.mT).sum(0)[0] - centre @ matrix
        dpixels = torch.addmm(shift.to(x.dtype), pixels, matrix.to(x.dtype))
        dx = dpixels.view(x.shape[0], x.shape[2], x.shape[3], x.shape[1]).permute(0, 3, 1, 2)
        dtaps = pixels.shape[0] * centre[:, None] * constant + scatter @ taps * factor

        # plus the direct gradient of the chosen rows
        zeros = torch.zeros_like(sums.scale)
        own, _ = abn_backward_input(dy, y, None, bias_of(bias, zeros), sums.scale, zeros, zeros, *norm.code)
        dchosen, dkernel, _ = torch.ops.aten.convolution_backward(
            *(own, x[rows], kernel.to(x.dtype), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1, [True, True, False])
        )
        dx = dx.index_add(0, rows, dchosen)
        dkernel = dkernel + dtaps.view(2, 2, *kernel.shape[:2]).permute(2, 3, 0, 1)
        needs = ctx.needs_input_grad
        return (
            dx if needs[0] else None,
            None,
            dkernel.to(kernel.dtype) if needs[2] else None,
            scale_gradient(kernel, dkernel, sums.dweight, weight.dtype, dim=1) if needs[3] else None,
            sums.dbias if needs[4] else None,
            None,
        )


def _pixels(x: Tensor) -> Tensor:
    """Return `N x C x h x w` as a matrix of pixels, `N h w x C`; a view if channels come last in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _taps(kernel: Tensor, like: Tensor) -> Tensor:
    """Return `C x D x 2 x 2` as four matrices, `4 x C x D`, in full precision."""
    return kernel.detach().to(wide(like.dtype)).permute(2, 3, 0, 1).reshape(4, *kernel.shape[:2])


def _moments(pixels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute the mean `C` of the pixels, and the `C x C` sums of products of their differences from it."""
    centre = pixels.mean(0, dtype=dtype) if pixels.shape[0] else pixels.new_zeros(pixels.shape[1], dtype=dtype)
    scatter = torch.zeros(pixels.shape[1], pixels.shape[1], dtype=dtype, device=pixels.device)
    for part in torch.split(pixels, _PIXELS):
        difference = part.to(dtype) - centre
        scatter.addmm_(difference.mT, difference)
    return centre, scatter
