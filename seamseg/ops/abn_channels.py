"""In-place ABN forward and backward without autograd: the steps, and the arithmetic per channel between them.

Ranks exchange the statistics of a batch and the sums of the backward pass, nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, distributed

from .abn_recompute import cached_statistics
from .abn_steps import (
    abn_backward_channels,
    abn_backward_input,
    abn_backward_reduce,
    abn_forward_channels,
    abn_statistics,
    abn_transform,
    activation_code,
)
from .reference import abn as plain


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
    statistics, scale = cached_statistics(_statistics, x, weight, norm)
    return transform(x, residual, scale, bias, norm, statistics), statistics


def transform(
    x: Tensor, residual: Tensor | None, scale: Tensor, bias: Tensor | None, norm: Norm, statistics: ChannelStatistics
) -> Tensor:
    """Compute :func:`normalise` with given statistics and `scale`, `gamma invstd`."""
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
    dx, dresidual = abn_backward_input(dy, y, residual, beta, sums.scale, sums.offset, sums.slope_of_z, code, parameter)
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
    gamma comes from the kernel before the norm (:mod:`seamseg.ops.abn_kernel_gradient`), which also corrects that of
    scales up to 16 spacings; else it shrinks with the square of gamma over the spacing.
    """
    code, parameter = activation_code(norm.activation, norm.parameter)
    mean, invstd, total = statistics
    sums = abn_backward_reduce(dy, y, residual, bias_of(bias, invstd), code, parameter)
    dbias, count, joint = sums[0], y.numel() // y.shape[1], None
    if norm.training and norm.group is not None:
        _require_group(norm.group)
        dgamma = sums[1] / gamma_of(weight, invstd, norm.eps)
        joint = torch.stack((dbias, dgamma, sums[2], torch.full_like(dbias, count)))
        distributed.all_reduce(joint, group=norm.group)
    totals = (total, 1.0) if isinstance(total, Tensor) else (None, total)
    channels = plain.abn_backward_channels if torch.compiler.is_compiling() else abn_backward_channels
    coefficients = channels(
        *(*sums, joint, totals[0], mean, invstd, _vector(weight, invstd)),
        *(norm.training, deferred, count, totals[1], norm.eps, spacing_at_1(y.dtype)),
    )
    return GradientSums(*coefficients, dbias if bias is None else dbias.to(bias.dtype))


def spacing_at_1(dtype: torch.dtype) -> float:
    """Return the spacing of the numbers of `dtype` above 1."""
    return torch.finfo(dtype).eps


def _vector(weight: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a weight as the operators take it."""
    return None if weight is None else weight.to(like.dtype).contiguous()


def dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Return `x` in a memory format of the steps: that of `like`, or its own if contiguous or channels last."""
    if like is not None:
        return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()


def _statistics(x: Tensor, weight: Tensor | None, norm: Norm) -> tuple[ChannelStatistics, Tensor]:
    if norm.training:
        mean, var = abn_statistics(x)
        return batch_statistics(mean, var, x.numel() // x.shape[1], weight, norm)
    assert norm.running_mean is not None and norm.running_var is not None, "checked by the callers"
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    invstd = torch.rsqrt(norm.running_var.to(wide) + norm.eps)
    # a copy: the averages may change before the backward pass
    statistics = ChannelStatistics(norm.running_mean.to(wide, copy=True), invstd, 0.0)
    return statistics, scale_of(weight, statistics, norm.eps)


def scale_of(weight: Tensor | None, statistics: ChannelStatistics, eps: float) -> Tensor:
    """Return `gamma invstd`."""
    return gamma_of(weight, statistics.invstd, eps) * statistics.invstd


def batch_statistics(
    mean: Tensor, var: Tensor, count: int, weight: Tensor | None, norm: Norm
) -> tuple[ChannelStatistics, Tensor]:
    """Return the statistics of a training step from mean, biased variance and count of this rank, and `gamma invstd`.

    Combines them with those of the other ranks of the group, and updates the running averages. A batch of fewer than
    two values has no unbiased variance: it neither changes them nor is counted.
    """
    total: Tensor | None = None
    if norm.group is not None:
        mean, var, total = _join(mean, var, count, norm.group)
    # the compiler fuses plain operators
    channels = plain.abn_forward_channels if torch.compiler.is_compiling() else abn_forward_channels
    invstd, scale = channels(
        *(mean, var, total, _vector(weight, var), norm.running_mean, norm.running_var, norm.batches),
        *(norm.momentum, norm.eps, count),
    )
    return ChannelStatistics(mean, invstd, float(max(count, 1)) if total is None else total), scale


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
