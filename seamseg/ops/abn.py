"""Activated batch norm, plain, in-place and synchronised, as functions (docs/contract.md, section 3; arXiv 1712.02616).

"In-place" refers to memory: the input is not kept for the backward pass, which recovers it from the output, a tensor
that the next layer keeps anyway. The input itself is not overwritten: it may be a leaf, a view, or be used again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from seamseg.ops._library import describe, differentiable_once
from seamseg.ops.abn_recompute import cached_statistics, recomputing
from seamseg.ops.abn_steps import (
    abn_backward_channels,
    abn_backward_input,
    abn_backward_reduce,
    abn_forward_channels,
    abn_statistics,
    abn_transform,
)
from seamseg.ops.activation import activate_, check_activation
from seamseg.ops.reference import abn as plain
from seamseg.ops.reference import wide


class Norm(NamedTuple):
    """Options and running averages of a norm; see :func:`inplace_abn`.

    `batches` counts the batches in the running averages; int64 scalar. Without a momentum these are the plain averages
    over the batches.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float | None
    eps: float
    activation: str
    parameter: float
    group: distributed.ProcessGroup | None
    batches: Tensor | None = None

    @property
    def code(self) -> tuple[int, float]:
        """Code and parameter of the activation, as the operators take them; identity is a leaky ReLU of slope 1."""
        return int(self.activation == "elu"), 1.0 if self.activation == "identity" else self.parameter


class ChannelStatistics(NamedTuple):
    """Mean and 1 / standard deviation of a forward pass, each `C`; `values` of this rank, `total` of all ranks.

    `total` is a float64 scalar, None without a group.
    """

    mean: Tensor
    invstd: Tensor
    total: Tensor | None
    values: int


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
    return activate_(y, norm.activation, norm.parameter)


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
    activation, activation_param : see :data:`seamseg.ops.activation.ACTIVATIONS`
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
    :func:`seamseg.ops.abn_kernel_gradient.defer_scale_gradient`, where `x` comes from a convolution: small scales get
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
    return transform(x, residual, scale, bias, norm, statistics), statistics


def transform(
    x: Tensor, residual: Tensor | None, scale: Tensor, bias: Tensor | None, norm: Norm, statistics: ChannelStatistics
) -> Tensor:
    """Compute :func:`normalise` with given statistics and `scale`, `gamma invstd`."""
    return abn_transform(x, statistics.mean, scale, bias_of(bias, scale), residual, *norm.code)


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
    """Compute the gradients of input and residual (empty without one), and the sums with the gradients of parameters.

    The latter are of this rank alone; `deferred` as for :func:`gradient_sums`.
    """
    sums = gradient_sums(dy, y, residual, weight, bias, norm, statistics, deferred)
    beta = bias_of(bias, sums.scale)
    dx, dresidual = abn_backward_input(dy, y, residual, beta, sums.scale, sums.offset, sums.slope_of_z, *norm.code)
    return dx, dresidual, sums


class GradientSums(NamedTuple):
    """Coefficients of the gradient of the input, `scale dz + offset + slope x_hat`, and gradients of the parameters.

    `slope_of_z` is `slope / gamma`. Each is `C`, but `dweight`, `2 x C`: the gradient of the weight, and what times the
    scalar product of the kernel of a channel and its gradient must be added to it.
    """

    scale: Tensor
    offset: Tensor
    slope: Tensor
    slope_of_z: Tensor
    dweight: Tensor
    dbias: Tensor


def gradient_sums(
    dy: Tensor,
    y: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    statistics: ChannelStatistics,
    deferred: bool,
) -> GradientSums:
    """Compute the sums over pixels and ranks for the gradients; arguments as for :func:`gradients`.

    A channel is unresolved if `gamma x_hat` is less than the spacing of the numbers that `y` is stored in, at the root
    mean square of `z` (1/128 of it in bfloat16): `x_hat` cannot be recovered there. With `deferred` the gradient of
    gamma comes from the kernel before the norm (:mod:`seamseg.ops.abn_kernel_gradient`), which also corrects it for
    scales up to 16 spacings; else it shrinks with the square of gamma over the spacing.
    """
    mean, invstd, total, values = statistics
    dbias, moment, squares = abn_backward_reduce(dy, y, residual, bias_of(bias, invstd), *norm.code)
    count, joint = count_of(y), None
    if norm.training and norm.group is not None:
        dgamma = moment / plain.gamma_of(weight, invstd, norm.eps)
        joint = torch.stack((dbias, dgamma, squares, torch.full_like(dbias, count)))
        distributed.all_reduce(joint, group=norm.group)
    # the compiler fuses plain operators
    channels = plain.abn_backward_channels if torch.compiler.is_compiling() else abn_backward_channels
    coefficients = channels(
        dbias,
        moment,
        squares,
        joint,
        total,
        mean,
        invstd,
        _vector(weight, invstd),
        norm.training,
        deferred,
        count,
        float(max(values, 1)),
        norm.eps,
        spacing_at_1(y.dtype),
    )
    return GradientSums(*coefficients, dbias if bias is None else dbias.to(bias.dtype))


def _statistics(x: Tensor, weight: Tensor | None, norm: Norm) -> tuple[ChannelStatistics, Tensor]:
    if norm.training:
        return batch_statistics(*abn_statistics(x), count_of(x), weight, norm)
    assert norm.running_mean is not None and norm.running_var is not None, "checked by the callers"
    invstd = torch.rsqrt(norm.running_var.to(wide(x.dtype)) + norm.eps)
    # a copy: the averages may change before the backward pass
    mean = norm.running_mean.to(wide(x.dtype), copy=True)
    statistics = ChannelStatistics(mean, invstd, None, count_of(x))
    return statistics, plain.gamma_of(weight, invstd, norm.eps) * invstd


def batch_statistics(
    mean: Tensor, var: Tensor, count: int, weight: Tensor | None, norm: Norm
) -> tuple[ChannelStatistics, Tensor]:
    """Join mean, biased variance and count over the ranks of the group; return them and `gamma invstd`.

    Update the running averages; a batch of fewer than two values, which has no unbiased variance, is not counted.
    """
    total: Tensor | None = None
    if norm.group is not None:
        mean, var, total = _join(mean, var, count, norm.group)
    channels = plain.abn_forward_channels if torch.compiler.is_compiling() else abn_forward_channels
    invstd, scale = channels(
        mean,
        var,
        total,
        _vector(weight, var),
        norm.running_mean,
        norm.running_var,
        norm.batches,
        norm.momentum,
        norm.eps,
        count,
    )
    return ChannelStatistics(mean, invstd, total, count), scale


def _join(mean: Tensor, var: Tensor, count: int, group: distributed.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Combine mean, biased variance and count over all ranks of a group, exact for uneven counts.

    See docs/contract.md, section 3. The count stays a tensor (at least 1), so that the host does not wait for the
    device.
    """
    channels = mean.shape[0]
    local = torch.cat((mean.double(), var.double(), mean.new_full((1,), count, dtype=torch.float64)))
    gathered = local.new_empty(distributed.get_world_size(group) * local.numel())
    distributed.all_gather_into_tensor(gathered, local, group=group)
    gathered = gathered.view(-1, local.numel())
    means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
    total = counts.sum().clamp(min=1)
    joint = (counts * means).sum(0) / total
    spread = (counts * (variances + (means - joint) ** 2)).sum(0) / total
    return joint.to(mean.dtype), spread.to(var.dtype), total


def count_of(x: Tensor) -> int:
    """Return the number of values of each channel."""
    return x.numel() // x.shape[1]


def bias_of(bias: Tensor | None, like: Tensor) -> Tensor:
    """Return the bias in the precision of `like`; 0 without one."""
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype)


def spacing_at_1(dtype: torch.dtype) -> float:
    """Return the spacing of the numbers of `dtype` above 1."""
    return torch.finfo(dtype).eps


def _vector(weight: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a weight as the operators take it."""
    return None if weight is None else weight.to(like.dtype).contiguous()


def dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Return `x` in a memory format of the steps: of `like`, or its own if contiguous or channels last."""
    if like is not None:
        return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()
