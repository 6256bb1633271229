"""The sum at the end of a residual block with a projection, which stores one map instead of three.

`act(abn(x) + abn(conv1x1(shortcut)))` keeps its output and the input of the block, which the first convolution of the
block keeps anyway. Neither normalised map can be recovered from the sum alone, so the backward pass computes the 1x1
convolution again: under 3 % of a training step of ResNet-50, for a tenth of its stored maps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops._library import differentiable_once
from seamseg.ops.abn import (
    ChannelStatistics,
    Norm,
    apply_norm,
    count_of,
    dense,
    gradients,
    normalise,
    transform,
)
from seamseg.ops.abn_kernel_gradient import defer_scale_gradient, scale_gradient
from seamseg.ops.abn_recompute import checkpointed
from seamseg.ops.reference.abn import gamma_of

_ONEDNN_CHANNELS = 16
"""Channels that the widest 1x1 kernels of oneDNN process at once."""


class Projection(NamedTuple):
    """The 1x1 convolution of a shortcut, with a kernel `C x C_in x 1 x 1`, and its norm without an activation."""

    kernel: Tensor
    stride: tuple[int, int]
    weight: Tensor | None
    bias: Tensor | None
    norm: Norm


def inplace_abn_projection(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    shortcut: Tensor,
    projection: Projection,
    deferred: Tensor | None = None,
) -> Tensor:
    """Apply in-place ABN to `x` with the residual `abn(conv2d(shortcut, kernel, stride=stride))`: `N x C x h x w`.

    `x` comes from the last convolution of the branch, `shortcut`, `N x C_in x H x W`, is the input of the block.
    `weight`, `bias`, `norm` and `deferred` belong to the last norm of the branch, whose activation follows the sum.
    """
    kernel, stride, projection_weight, projection_bias, projection_norm = projection
    tensors = (x, weight, bias, shortcut, kernel, projection_weight, projection_bias)
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if tracked and not torch.compiler.is_compiling():
        y: Tensor = _ProjectionSum.apply(*tensors, deferred, norm, projection_norm, stride)
        return y
    inner = None
    if tracked and projection_weight is not None:
        kernel, inner = defer_scale_gradient(kernel, projection_weight)

    def project(shortcut: Tensor) -> Tensor:
        projected = _convolve(shortcut, kernel, stride, like=x)
        return apply_norm(projected, projection_weight, projection_bias, projection_norm, deferred=inner)

    residual = checkpointed(project, shortcut) if tracked else project(shortcut)
    return apply_norm(x, weight, bias, norm, residual, deferred)


class _ProjectionSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shortcut: Tensor,
        projection: Tensor,
        projection_weight: Tensor | None,
        projection_bias: Tensor | None,
        deferred: Tensor | None,
        norm: Norm,
        projection_norm: Norm,
        stride: tuple[int, int],
    ) -> Tensor:
        ctx.settings = norm, projection_norm, stride, deferred is not None
        x = dense(x)
        projected = dense(_convolve(shortcut, projection, stride, x), like=x)
        residual, inner = normalise(projected, None, projection_weight, projection_bias, projection_norm)
        y, outer = normalise(x, residual, weight, bias, norm)
        statistics = (s for o in (outer, inner) for s in (o.mean, o.invstd, o.total))
        ctx.save_for_backward(y, weight, bias, shortcut, projection, projection_weight, projection_bias, *statistics)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        norm, projection_norm, stride, deferred = ctx.settings
        y, weight, bias, shortcut, projection, projection_weight, projection_bias = saved[:7]
        outer, inner = (
            ChannelStatistics(mean, invstd, total, count_of(y)) for mean, invstd, total in (saved[7:10], saved[10:])
        )
        projected = dense(_convolve(shortcut, projection, stride, y), like=y)
        scale = gamma_of(projection_weight, inner.invstd, projection_norm.eps) * inner.invstd
        residual = transform(projected, None, scale, projection_bias, projection_norm, inner)
        del projected
        dx, dresidual, sums = gradients(dense(dy, like=y), y, residual, weight, bias, norm, outer, deferred)
        dprojected, _, inner_sums = gradients(
            dresidual, residual, None, projection_weight, projection_bias, projection_norm, inner, True
        )
        del residual, dresidual
        needs = ctx.needs_input_grad
        pixels, step = strided_pixels(shortcut, stride)
        dpixels, dprojection, _ = torch.ops.aten.convolution_backward(
            *(dprojected, pixels.to(y.dtype), projection.to(y.dtype), None),
            *(step, (0, 0), (1, 1), False, (0, 0), 1, [needs[3], needs[4] or needs[5], False]),
        )
        dshortcut = dpixels
        if needs[3] and pixels is not shortcut:
            dshortcut = torch.zeros_like(shortcut, dtype=dpixels.dtype)
            dshortcut[:, :, :: stride[0], :: stride[1]] = dpixels
        if dprojection is not None:
            dprojection = dprojection.to(projection.dtype)
        return (
            dx if needs[0] else None,
            sums.dweight[0].to(weight.dtype) if needs[1] and not deferred else None,
            sums.dbias if needs[2] else None,
            dshortcut.to(shortcut.dtype) if needs[3] else None,
            dprojection if needs[4] else None,
            scale_gradient(projection, dprojection, inner_sums.dweight, projection_weight.dtype) if needs[5] else None,
            inner_sums.dbias if needs[6] else None,
            sums.dweight if deferred else None,
            *[None] * 3,
        )


def strided_pixels(x: Tensor, stride: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Return input and stride for a 1x1 convolution without padding, equivalent to `x` and `stride`.

    With fewer than 16 channels, channels last and a stride, oneDNN's float32 kernel for the gradient of the weight
    writes past its workspace (https://github.com/uxlfoundation/oneDNN/issues/6035): such an input is subsampled first.
    """
    if x.device.type != "cpu" or x.shape[1] >= _ONEDNN_CHANNELS or max(stride) == 1:
        return x, stride
    return x[:, :, :: stride[0], :: stride[1]], (1, 1)


class PointwiseConv(nn.Conv2d):
    """A 1x1 convolution without padding, with the workaround of :func:`strided_pixels`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map `N x in_channels x H x W` to `N x out_channels x h x w`."""
        return self.convolve(input, self.weight)

    def convolve(self, input: Tensor, kernel: Tensor) -> Tensor:
        """Return what :meth:`forward` does with another kernel."""
        pixels, stride = strided_pixels(input, self.stride)
        return functional.conv2d(pixels, kernel, self.bias, stride)


def _convolve(shortcut: Tensor, projection: Tensor, stride: tuple[int, int], like: Tensor) -> Tensor:
    # in the dtype of the branch, so that both passes compute the same with and without autocast
    with torch.autocast(like.device.type, enabled=False):
        pixels, step = strided_pixels(shortcut, stride)
        return functional.conv2d(pixels.to(like.dtype), projection.to(like.dtype), None, step)
