"""In-place ABN as functions: alone, at the end of a residual block, and behind an upsampling of which rows are wanted.

Also plain activated batch norm. The definition is in docs/contract.md, section 3, and arXiv 1712.02616. "In-place"
refers to memory: the input is not kept for the backward pass, which recovers it from the output, a tensor that the next
layer keeps anyway. The input itself is not overwritten: it may be a leaf, a view, or be used again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn import functional

from seamseg.ops._library import describe, differentiable_once, wide
from seamseg.ops.abn_recompute import cached_statistics, checkpointed, recomputing
from seamseg.ops.abn_steps import (
    ChannelStatistics,
    GradientSums,
    Norm,
    abn_backward_input,
    abn_statistics,
    abn_transform,
    batch_statistics,
    bias_of,
    count_of,
    defer_scale_gradient,
    dense,
    gradient_sums,
    scale_gradient,
)
from seamseg.ops.fused import activate, check_activation
from seamseg.ops.reference.abn import gamma_of

_PIXELS = 8192
"""Pixels whose products are summed at once."""
_ONEDNN_CHANNELS = 16
"""Channels that the widest 1x1 kernels of oneDNN process at once."""


def apply_plain_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """Apply batch norm, then the activation: `act(x_hat * weight + bias)`, in the shape and memory format of `x`."""
    mean, var, training, momentum = norm.running_mean, norm.running_var, norm.training, norm.momentum
    check_input("abn", x, weight, bias, mean, var, training)
    check_activation("abn", norm.activation, norm.parameter)
    count = count_of(x)
    if training and count < 2:
        # one value has no variance (x_hat is 0), none has no mean: the running averages stay as they are
        like = x if weight is None else weight
        mean, var = (like.new_ones(x.shape[1]) if s is None else s.clone() for s in (mean, var))
        training = count == 1
    elif training and recomputing():
        # the running averages contain this batch already
        mean, var = (None if s is None else s.clone() for s in (mean, var))
    elif training and norm.batches is not None:
        norm.batches.add_(1)
        if momentum is None:
            momentum = 1.0 / int(norm.batches)
    cudnn = torch.backends.cudnn.enabled
    y = torch.batch_norm(x, weight, bias, mean, var, training, momentum or 0.0, norm.eps, cudnn)
    return activate(y, norm.activation, norm.parameter, inplace=True)


def inplace_abn(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str = "leaky_relu",
    activation_param: float = 0.01,
    group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """Apply in-place ABN, `act(x_hat * (|weight| + eps) + bias)`, which keeps only its output.

    The activation must be invertible. A negative weight gets the gradient of its absolute value. The output must not be
    changed in place afterwards; the backward pass raises an error if it was.

    Parameters
    ----------
    x : `N x C` or `N x C x ...`
    weight, bias : `C`, or None for 1 and 0
    running_mean, running_var : `C`; updated when training (variance unbiased), used otherwise; None, when training, for
        none
    training : normalise with the statistics of this batch
    momentum : weight of this batch in the running averages
    eps : added to the variance and to the scale
    activation, activation_param : see :data:`seamseg.ops.fused.ACTIVATIONS`
    group : ranks that share the statistics of a training step, each weighted by its own count; None for no exchange.
        Every rank of the group must make the call, a rank with an empty `x` too. Gradients of weight and bias stay
        local, as DistributedDataParallel expects.

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    norm = Norm(running_mean, running_var, training, momentum, eps, activation, activation_param, group)
    return apply_norm(x, weight, bias, norm)


def apply_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    residual: Tensor | None = None,
    deferred: Tensor | None = None,
) -> Tensor:
    """Compute :func:`inplace_abn` with its options as a :class:`Norm`.

    A residual like `x` is added before the activation, and subtracted in the backward pass: a residual block keeps only
    its output, besides the residual, which the layer that made it keeps. `deferred` is the result of
    :func:`seamseg.ops.abn_steps.defer_scale_gradient`, where `x` comes from a convolution: small scales get
    their gradient through its kernel; without it that gradient shrinks with the square of the scale.
    """
    check_input("inplace_abn", x, weight, bias, norm.running_mean, norm.running_var, norm.training)
    check_activation("inplace_abn", norm.activation, norm.parameter, invertible=True)
    if residual is not None:
        if residual.shape != x.shape or residual.device != x.device:
            raise ValueError(f"inplace_abn: residual must be like the input, got {describe(residual)}, {describe(x)}")
        residual = residual.to(x.dtype)
    tensors = (x, residual, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        y: Tensor = _InPlaceABN.apply(*tensors, deferred, *norm)
        return y
    x = dense(x)
    return normalise(x, None if residual is None else dense(residual, like=x), weight, bias, norm)[0]


def check_input(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
) -> None:
    """Require `N x C x ...` and vectors of `C` on its device; running statistics where they are used."""
    if not training and (running_mean is None or running_var is None):
        raise ValueError(f"{op}: running_mean and running_var must be given, or training be True")
    given = running_mean if running_mean is not None else weight
    channels = "C" if given is None else given.numel()
    if x.dim() < 2 or x.shape[1] < 1 or channels not in ("C", x.shape[1]) or not x.is_floating_point():
        raise ValueError(f"{op}: input must be floating, N x {channels} x ..., got {describe(x)}")
    vectors = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    for name, vector in vectors.items():
        if vector is None:
            continue
        if vector.device != x.device:
            raise ValueError(f"{op}: input is on {x.device}, the layer on {vector.device}; move one of them")
        if vector.dim() != 1 or vector.shape[0] != x.shape[1]:
            raise ValueError(f"{op}: {name} must hold one number a channel ({x.shape[1]}), got {describe(vector)}")


class _InPlaceABN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        deferred: Tensor | None,
        *settings: Any,
    ) -> Tensor:
        ctx.norm = norm = Norm(*settings)
        ctx.deferred = deferred is not None
        x = dense(x)
        residual = None if residual is None else dense(residual, like=x)
        y, (mean, invstd, total, _) = normalise(x, residual, weight, bias, norm)
        ctx.save_for_backward(y, residual, weight, bias, mean, invstd, total)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        y, residual, weight, bias, mean, invstd, total = saved
        statistics = ChannelStatistics(mean, invstd, total, count_of(y))
        dy = dense(dy, like=y)
        dx, dresidual, sums = gradients(dy, y, residual, weight, bias, ctx.norm, statistics, ctx.deferred)
        needs_x, needs_residual, needs_weight, needs_bias = ctx.needs_input_grad[:4]
        return (
            dx if needs_x else None,
            dresidual if needs_residual else None,
            sums.dweight[0].to(weight.dtype) if needs_weight and not ctx.deferred else None,
            sums.dbias if needs_bias else None,
            # with it comes the gradient of the weight
            sums.dweight if ctx.deferred else None,
            *[None] * len(ctx.norm),
        )


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, ChannelStatistics]:
    """Compute `act(gamma (x - mean) invstd + bias + residual)` of a dense `x`; update the averages when training."""
    statistics, scale = cached_statistics(_statistics, x, weight, norm)
    return abn_transform(x, statistics.mean, scale, bias_of(bias, scale), residual, *norm.code), statistics


def _statistics(x: Tensor, weight: Tensor | None, norm: Norm) -> tuple[ChannelStatistics, Tensor]:
    if norm.training:
        return batch_statistics(*abn_statistics(x), count_of(x), weight, norm)
    assert norm.running_mean is not None and norm.running_var is not None, "checked by the callers"
    invstd = torch.rsqrt(norm.running_var.to(wide(x.dtype)) + norm.eps)
    # a copy: the averages may change before the backward pass
    mean = norm.running_mean.to(wide(x.dtype), copy=True)
    statistics = ChannelStatistics(mean, invstd, None, count_of(x))
    return statistics, gamma_of(weight, invstd, norm.eps) * invstd


def gradients(
    dy: Tensor,
    y: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    statistics: ChannelStatistics,
    deferred: bool,
) -> tuple[Tensor, Tensor, GradientSums]:
    """Compute the gradients of input and residual (empty without one), and the sums with those of the parameters."""
    sums = gradient_sums(dy, y, residual, weight, bias, norm, statistics, deferred)
    beta = bias_of(bias, sums.scale)
    dx, dresidual = abn_backward_input(dy, y, residual, beta, sums.scale, sums.offset, sums.slope_of_z, *norm.code)
    return dx, dresidual, sums


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

    The result and `shortcut` are kept, which the first convolution of the block keeps anyway. Neither normalised map
    can be recovered from the sum alone, so the backward pass computes the 1x1 convolution again: under 3 % of a
    training step of ResNet-50, for a tenth of its stored maps.

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
        bias_of_projection = bias_of(projection_bias, scale)
        residual = abn_transform(projected, inner.mean, scale, bias_of_projection, None, *projection_norm.code)
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


def _convolve(shortcut: Tensor, projection: Tensor, stride: tuple[int, int], like: Tensor) -> Tensor:
    # in the dtype of the branch, so that both passes compute the same with and without autocast
    with torch.autocast(like.device.type, enabled=False):
        pixels, step = strided_pixels(shortcut, stride)
        return functional.conv2d(pixels.to(like.dtype), projection.to(like.dtype), None, step)


def upsample_abn_rows(
    x: Tensor, rows: Tensor, kernel: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> Tensor:
    """Compute `abn(conv_transpose2d(x, kernel, stride=2))[rows]`, with batch statistics over all of `x`.

    Map `N x C x h x w` (channels last is fastest) with a kernel `C x D x 2 x 2` to `P x D x 2h x 2w`; `rows` are int64
    `P`, no row twice. The norm must not have frozen statistics.

    The convolution's windows do not overlap, so it is four matrices `W_k` applied to the pixels `x`: the mean of its
    output is `W_k^T mean(x)`, its variance the diagonal of `W_k^T Cov(x) W_k`, and since the gradient through the
    statistics is affine in the output, its contribution to all rows is affine in `x`. A `C x C` covariance thus
    replaces a map that is four times as large as the input, in the backward pass as well.
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
            # mean of the pixels, and the sums of products of their differences from it
            dtype, width = taps.dtype, pixels.shape[1]
            centre = pixels.mean(0, dtype=dtype) if pixels.shape[0] else pixels.new_zeros(width, dtype=dtype)
            scatter = torch.zeros(width, width, dtype=dtype, device=x.device)
            for part in torch.split(pixels, _PIXELS):
                difference = part.to(dtype) - centre
                scatter.addmm_(difference.mT, difference)
            means = centre @ taps
            mean = means.mean(0)
            spread = ((scatter @ taps) * taps).sum(1) / max(pixels.shape[0], 1)
            var = (spread + (means - mean) ** 2).mean(0)
            statistics, scale = cached_statistics(batch_statistics, mean, var, 4 * pixels.shape[0], weight, norm)
            mean, invstd, total, _ = statistics
            chosen = functional.conv_transpose2d(x[rows], kernel.to(x.dtype), stride=2)
            y = abn_transform(dense(chosen), mean, scale, bias_of(bias, scale), None, *norm.code)
        ctx.norm = norm
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
