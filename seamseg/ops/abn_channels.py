"""In-place ABN forward and backward without autograd: the steps, and the arithmetic per channel between them.

Ranks exchange the statistics of a batch and the sums of the backward pass, nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, distributed

from .abn_recompute import cached_statistics
from .abn_steps import abn_backward_input, abn_backward_reduce, abn_statistics, abn_transform, activation_code

CORRECTED = 16
"""Multiple of the spacing of the stored numbers below which the kernel corrects the gradient of a scale."""


class Norm(NamedTuple):
    """Options and running averages of a norm; see :func:`seamseg.ops.abn.inplace_abn`.

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


class ChannelStatistics(NamedTuple):
    """Statistics of a forward pass: mean and 1 / standard deviation, each `C`, and the count over all ranks."""

    mean: Tensor
    invstd: Tensor
    total: Tensor | float


def gamma_of(weight: Tensor | None, like: Tensor, eps: float) -> Tensor:
    """Return the scale `|weight| + eps`, in the precision of `like`; 1 without a weight."""
    return torch.ones_like(like) if weight is None else weight.to(like.dtype).abs() + eps


def bias_of(bias: Tensor | None, like: Tensor) -> Tensor:
    """Return the bias in the precision of `like`; 0 without one."""
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype)


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, ChannelStatistics]:
    """Compute `act(gamma (x - mean) invstd + bias + residual)`; updates the running averages when training.

    Parameters
    ----------
    x : `N x C x ...`, dense
    residual : like `x`, or None
    weight, bias : `C` or None
    norm : the options
    """
    statistics = cached_statistics(_statistics, x, norm)
    return transform(x, residual, weight, bias, norm, statistics), statistics


def transform(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    statistics: ChannelStatistics,
) -> Tensor:
    """Compute :func:`normalise` with given statistics."""
    scale = gamma_of(weight, statistics.mean, norm.eps) * statistics.invstd
    code, parameter = activation_code(norm.activation, norm.parameter)
    return abn_transform(x, statistics.mean, scale, bias_of(bias, scale), residual, code, parameter)


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
    """Compute the gradients of input and residual (empty without one), and the sums that hold those of the parameters.

    Gradients of weight and bias are those of this rank alone, as DistributedDataParallel expects. `deferred` is
    explained at :func:`gradient_sums`.
    """
    code, parameter = activation_code(norm.activation, norm.parameter)
    sums = gradient_sums(dy, y, residual, weight, bias, norm, statistics, deferred)
    beta = bias_of(bias, sums.scale)
    dx, dresidual = abn_backward_input(
        dy, y, residual, beta, sums.scale, sums.offset, sums.slope / sums.gamma, code, parameter
    )
    return dx, dresidual, sums


class GradientSums(NamedTuple):
    """Coefficients of the gradient of the input, `scale dz + offset + slope x_hat`, and gradients of the parameters.

    Each is `C`. `deferred` times the scalar product of the kernel of a channel and its gradient must be added to
    `dweight`.
    """

    gamma: Tensor
    scale: Tensor
    offset: Tensor
    slope: Tensor
    dweight: Tensor
    dbias: Tensor
    deferred: Tensor


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
    gamma comes from the kernel before the norm (:mod:`seamseg.ops.abn_kernel_gradient`), which also corrects that of
    scales up to `CORRECTED` spacings; else it shrinks with the square of gamma over the spacing.
    """
    code, parameter = activation_code(norm.activation, norm.parameter)
    gamma = gamma_of(weight, statistics.invstd, norm.eps)
    dbias, moment, squares = abn_backward_reduce(dy, y, residual, bias_of(bias, gamma), code, parameter)
    dgamma = moment / gamma
    scale = gamma * statistics.invstd
    sums = torch.stack((dbias, dgamma, squares, torch.full_like(dbias, y.numel() // y.shape[1])))
    if norm.training and norm.group is not None:
        _require_group(norm.group)
        distributed.all_reduce(sums, group=norm.group)
    spacing = spacing_of(sums[2] / sums[3].clamp(min=1), y.dtype)
    # the variance of x_hat, far below 1 where that of x is below eps
    variance = (1 - norm.eps * statistics.invstd**2).clamp(min=0)
    size = gamma * variance.sqrt()
    unresolved, corrected = size < spacing, size < CORRECTED * spacing
    known = torch.where(unresolved, 0.0 if deferred else (size / spacing) ** 2, 1.0)
    dgamma = dgamma * known
    if norm.training:
        # dx = gamma invstd (dz - mean(dz) - x_hat mean(dz x_hat))
        mean_dz, mean_dz_x = (sums[:2] / statistics.total).to(scale.dtype)
        offset, slope = -scale * mean_dz, -scale * (mean_dz_x * known)
        if deferred:
            # the part that the kernel does not cover: its dx contains the recovered sum times that variance
            dgamma = torch.where(corrected, dgamma * variance, dgamma)
    else:
        offset = slope = torch.zeros_like(scale)
        if deferred:
            # the kernel covers sum(dz x), without the mean
            dgamma = torch.where(corrected, -statistics.mean * statistics.invstd * dbias, dgamma)
    # a negative weight gets the gradient of its absolute value
    sign = torch.ones_like(gamma) if weight is None else torch.where(weight < 0, -1.0, 1.0).to(gamma.dtype)
    return GradientSums(
        gamma,
        scale,
        offset,
        slope,
        dgamma.mul(sign).to(gamma.dtype if weight is None else weight.dtype),
        dbias if bias is None else dbias.to(bias.dtype),
        torch.where(corrected, sign / gamma, 0.0),
    )


def spacing_of(mean_square: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing in `dtype` of numbers of this mean square."""
    return mean_square.sqrt() * torch.finfo(dtype).eps


def dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Return `x` in a memory format of the steps: that of `like`, or its own if contiguous or channels last."""
    if like is not None:
        return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()


def _statistics(x: Tensor, norm: Norm) -> ChannelStatistics:
    if norm.training:
        mean, var = abn_statistics(x)
        return batch_statistics(mean, var, x.numel() // x.shape[1], norm)
    assert norm.running_mean is not None and norm.running_var is not None, "checked by the callers"
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    # a copy: the averages may change before the backward pass
    return ChannelStatistics(
        norm.running_mean.to(wide, copy=True), torch.rsqrt(norm.running_var.to(wide) + norm.eps), 0.0
    )


def batch_statistics(mean: Tensor, var: Tensor, count: int, norm: Norm) -> ChannelStatistics:
    """Return the statistics of a training step from mean, biased variance and count of this rank.

    Combines them with those of the other ranks of the group, and updates the running averages.
    """
    total: Tensor | float
    if norm.group is not None:
        mean, var, total = _join(mean, var, count, norm.group)
        unbiased = var * (total / (total - 1).clamp(min=1)).to(var.dtype)
        _update_averages(norm, mean, unbiased, total > 1)
    else:
        total = float(max(count, 1))
        if count > 1:
            _update_averages(norm, mean, var * (count / (count - 1)), None)
    return ChannelStatistics(mean, torch.rsqrt(var + norm.eps), total)


def _update_averages(norm: Norm, mean: Tensor, unbiased: Tensor, counted: Tensor | None) -> None:
    """Add a batch to the running averages if `counted`, a bool scalar, is true; None for always.

    A batch of fewer than two values has no unbiased variance: it must neither change them nor be counted.
    """
    if norm.batches is not None:
        norm.batches.add_(1 if counted is None else counted)
    weight: Tensor | float
    if norm.momentum is not None:
        # in float64: a float32 momentum would round averages that are float64
        weight = norm.momentum if counted is None else counted.double() * norm.momentum
    else:
        if norm.batches is None:
            return  # a layer without running averages
        weight = (1.0 if counted is None else counted.double()) / norm.batches.clamp(min=1).double()
    for average, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        if average is not None:
            share = weight.to(average.dtype) if isinstance(weight, Tensor) else weight
            average.lerp_(value.to(average.dtype), share)


def _join(mean: Tensor, var: Tensor, count: int, group: distributed.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Combine mean, biased variance and count over all ranks of a group, exact for uneven counts.

    See docs/contract.md, section 3. The count stays a tensor (at least 1), so that the host does not wait for the
    device.
    """
    _require_group(group)
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


def _require_group(group: distributed.ProcessGroup) -> None:
    """Raise an error for a destroyed group: torch itself would hang or fail far from the cause.

    Groups are destroyed by all their ranks at the same point of the program, so all of them raise this together.
    """
    if torch.compiler.is_compiling() or group is distributed.group.WORLD:
        return
    try:
        distributed.get_process_group_ranks(group)
    except KeyError:
        raise RuntimeError(
            "InPlaceABNSync: its process group was destroyed. active_group keeps the groups of the last few sets of "
            "ranks: call it and set_active_group before each forward pass, and run the backward pass before the "
            "forward pass of many other sets"
        ) from None
