"""In-place ABN forward and backward without autograd: the steps, and the arithmetic per channel between them.

With one process or many: the statistics of a batch and the sums of the backward pass are all that ranks exchange.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, distributed

from .abn_replay import remembered
from .abn_steps import abn_backward_input, abn_backward_reduce, abn_statistics, abn_transform, activation_code

CORRECTED = 16
"""Spacings of the stored numbers below which the gradient of a scale is corrected by the kernel's."""


class Norm(NamedTuple):
    """What a normalisation is besides its parameters; see :func:`seamseg.ops.abn.inplace_abn`.

    `batches` counts the batches that moved the running averages; int64 scalar. Without a momentum they are the plain
    averages over these batches.
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


class Statistics(NamedTuple):
    """What a forward pass leaves for the backward pass: mean and 1 / deviation `C`, and the count over all ranks."""

    mean: Tensor
    invstd: Tensor
    total: Tensor | float


def gamma_of(weight: Tensor | None, like: Tensor, eps: float) -> Tensor:
    """The scale `|weight| + eps`, in the precision of `like`; 1 without a weight."""
    return torch.ones_like(like) if weight is None else weight.to(like.dtype).abs() + eps


def bias_of(bias: Tensor | None, like: Tensor) -> Tensor:
    """The bias in the precision of `like`; 0 without one."""
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype)


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor, Statistics]:
    """`act(gamma (x - mean) invstd + bias + residual)`, after an update of the running averages when training.

    Parameters
    ----------
    x : `N x C x ...`, dense
    residual : like `x`, or None
    weight, bias : `C` or None
    norm : everything else
    """
    statistics = remembered(_statistics, x, norm)
    return transform(x, residual, weight, bias, norm, statistics), statistics


def transform(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm, statistics: Statistics
) -> Tensor:
    """The second half of :func:`normalise`, with statistics that are known."""
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
    statistics: Statistics,
    deferred: bool,
) -> tuple[Tensor, Tensor, GradientSums]:
    """Gradients of input and residual (empty without one) from the output `y` and its gradient, and those of the rest.

    Those of weight and bias are of this rank alone, as DistributedDataParallel wants them. `deferred` is explained at
    :func:`gradient_sums`.
    """
    code, parameter = activation_code(norm.activation, norm.parameter)
    sums = gradient_sums(dy, y, residual, weight, bias, norm, statistics, deferred)
    beta = bias_of(bias, sums.scale)
    dx, dresidual = abn_backward_input(
        dy, y, residual, beta, sums.scale, sums.offset, sums.slope / sums.gamma, code, parameter
    )
    return dx, dresidual, sums


class GradientSums(NamedTuple):
    """The gradient of the input is `scale dz + offset + slope x_hat`; the rest is what the parameters get. All `C`.

    `deferred` times the scalar product of a channel's kernel and its gradient is to be added to `dweight`.
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
    statistics: Statistics,
    deferred: bool,
) -> GradientSums:
    """The sums over pixels and ranks that the gradients are made of; arguments as for :func:`gradients`.

    A channel is unresolved if `gamma x_hat` is less than the spacing of the numbers that `y` is stored in, at the root
    mean square of `z` (1/128 of it in bfloat16): `x_hat` cannot be rebuilt there. With `deferred` the gradient of gamma
    comes from the kernel before the norm (:mod:`seamseg.ops.abn_kernel_gradient`), which also corrects that of scales
    up to `CORRECTED` spacings; else it shrinks with the square of gamma over the spacing.
    """
    code, parameter = activation_code(norm.activation, norm.parameter)
    gamma = gamma_of(weight, statistics.invstd, norm.eps)
    dbias, moment, squares = abn_backward_reduce(dy, y, residual, bias_of(bias, gamma), code, parameter)
    dgamma = moment / gamma
    scale = gamma * statistics.invstd
    sums = torch.stack((dbias, dgamma, squares, torch.full_like(dbias, y.numel() // y.shape[1])))
    if norm.training and norm.group is not None:
        _require_alive(norm.group)
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
            # what the kernel's part lacks: its dx holds the rebuilt sum times that variance
            dgamma = torch.where(corrected, dgamma * variance, dgamma)
    else:
        offset = slope = torch.zeros_like(scale)
        if deferred:
            # the kernel's part is sum(dz x) then, without the mean
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
    """How far numbers of this mean square are apart in `dtype`."""
    return mean_square.sqrt() * torch.finfo(dtype).eps


def dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """`x` in a memory format that the steps take: that of `like`, or its own if it is contiguous or channels last."""
    if like is not None:
        return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()


def _statistics(x: Tensor, norm: Norm) -> Statistics:
    if norm.training:
        mean, var = abn_statistics(x)
        return batch_statistics(mean, var, x.numel() // x.shape[1], norm)
    assert norm.running_mean is not None and norm.running_var is not None, "checked by the callers"
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    # a copy: the averages may move before the backward pass
    return Statistics(norm.running_mean.to(wide, copy=True), torch.rsqrt(norm.running_var.to(wide) + norm.eps), 0.0)


def batch_statistics(mean: Tensor, var: Tensor, count: int, norm: Norm) -> Statistics:
    """What a training step normalises with, from this rank's mean, biased variance and count.

    Joins them with those of the group's other ranks, and moves the running averages.
    """
    total: Tensor | float
    if norm.group is not None:
        mean, var, total = _join(mean, var, count, norm.group)
        unbiased = var * (total / (total - 1).clamp(min=1)).to(var.dtype)
        _move_averages(norm, mean, unbiased, total > 1)
    else:
        total = float(max(count, 1))
        if count > 1:
            _move_averages(norm, mean, var * (count / (count - 1)), None)
    return Statistics(mean, torch.rsqrt(var + norm.eps), total)


def _move_averages(norm: Norm, mean: Tensor, unbiased: Tensor, moves: Tensor | None) -> None:
    """Take a batch into the running averages where `moves`, a bool scalar, is true; None for always.

    A batch of fewer than two values has no unbiased variance: it must not move them, nor be counted.
    """
    if norm.batches is not None:
        norm.batches.add_(1 if moves is None else moves)
    weight: Tensor | float
    if norm.momentum is not None:
        # in float64: a float32 momentum would show in averages that are float64
        weight = norm.momentum if moves is None else moves.double() * norm.momentum
    else:
        if norm.batches is None:
            return  # a layer without running averages
        weight = (1.0 if moves is None else moves.double()) / norm.batches.clamp(min=1).double()
    for average, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        if average is not None:
            share = weight.to(average.dtype) if isinstance(weight, Tensor) else weight
            average.lerp_(value.to(average.dtype), share)


def _join(mean: Tensor, var: Tensor, count: int, group: distributed.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all ranks of a group, exact for uneven counts (SPEC section 3).

    The count stays a tensor (at least 1), so that nothing here waits for the device.
    """
    _require_alive(group)
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


def _require_alive(group: distributed.ProcessGroup) -> None:
    """Refuse a group that was destroyed: torch itself would hang or fail far from the cause.

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
