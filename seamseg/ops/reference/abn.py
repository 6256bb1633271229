"""The steps of in-place ABN in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import widened

_ELU = 1
"""Code of the activation elu; another one is a leaky ReLU, of slope 1 for identity."""


def abn_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_statistics`."""
    wide = widened(x)
    dims = [0, *range(2, x.dim())]
    if x.numel() == 0:
        mean = wide.new_zeros(x.shape[1])
        return mean, torch.zeros_like(mean)
    var, mean = torch.var_mean(wide, dims, correction=0)
    return mean, var


def abn_transform(
    x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor, residual: Tensor | None, activation: int, parameter: float
) -> Tensor:
    """See :func:`seamseg.ops.abn_steps.abn_transform`."""
    z = (widened(x) - _across(mean, x)).mul_(_across(scale, x)).add_(_across(bias, x))
    if residual is not None:
        z = z.add_(residual)
    z = functional.elu_(z, parameter) if activation == _ELU else functional.leaky_relu_(z, parameter)
    return z.to(x.dtype)


def abn_backward_reduce(
    dy: Tensor, y: Tensor, residual: Tensor | None, bias: Tensor, activation: int, parameter: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_backward_reduce`."""
    dz, z = _rebuild(dy, y, residual, bias, activation, parameter)
    dims = [0, *range(2, y.dim())]
    squares = _deactivate(widened(y), activation, parameter).square().sum(dims)
    return dz.sum(dims), dz.mul_(z).sum(dims), squares


def abn_backward_input(
    dy: Tensor,
    y: Tensor,
    residual: Tensor | None,
    bias: Tensor,
    scale: Tensor,
    offset: Tensor,
    slope: Tensor,
    activation: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_backward_input`."""
    dz, z = _rebuild(dy, y, residual, bias, activation, parameter)
    dresidual = y.new_empty(0) if residual is None else torch.empty_like(y).copy_(dz)
    dx = z.mul_(_across(slope, y)).add_(_across(offset, y)).add_(dz.mul_(_across(scale, y)))
    return torch.empty_like(y).copy_(dx), dresidual


def abn_forward_channels(
    mean: Tensor,
    var: Tensor,
    total: Tensor | None,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_forward_channels`."""
    if total is not None:
        unbiased = var * (total / (total - 1).clamp(min=1)).to(var.dtype)
        _update_averages(running_mean, running_var, batches, momentum, mean, unbiased, total > 1)
    elif count > 1:
        unbiased = var * (count / (count - 1))
        _update_averages(running_mean, running_var, batches, momentum, mean, unbiased, None)
    invstd = torch.rsqrt(var + eps)
    return invstd, gamma_of(weight, invstd, eps) * invstd


def _update_averages(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    mean: Tensor,
    unbiased: Tensor,
    counted: Tensor | None,
) -> None:
    """Add a batch to the running averages if `counted`, a bool scalar, is true; None for always."""
    if batches is not None:
        batches.add_(1 if counted is None else counted)
    weight: Tensor | float
    if momentum is not None:
        # in float64: a float32 momentum would round averages that are float64
        weight = momentum if counted is None else counted.double() * momentum
    else:
        if batches is None:
            return  # a layer without running averages
        weight = (1.0 if counted is None else counted.double()) / batches.clamp(min=1).double()
    for average, value in ((running_mean, mean), (running_var, unbiased)):
        if average is not None:
            share = weight.to(average.dtype) if isinstance(weight, Tensor) else weight
            average.lerp_(value.to(average.dtype), share)


def abn_backward_channels(
    sum: Tensor,
    moment: Tensor,
    squares: Tensor,
    joint: Tensor | None,
    total: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    training: bool,
    deferred: bool,
    count: int,
    local_total: float,
    eps: float,
    spacing: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_backward_channels`."""
    gamma = gamma_of(weight, invstd, eps)
    scale = gamma * invstd
    dgamma = moment / gamma
    sums = (sum, dgamma, squares, torch.full_like(sum, count)) if joint is None else joint.unbind()
    lost = (sums[2] / sums[3].clamp(min=1)).sqrt() * spacing
    # the variance of x_hat, far below 1 where that of x is below eps
    variance = (1 - eps * invstd**2).clamp(min=0)
    size = gamma * variance.sqrt()
    unresolved, corrected = size < lost, size < CORRECTED * lost
    known = torch.where(unresolved, 0.0 if deferred else (size / lost) ** 2, 1.0)
    dgamma = dgamma * known
    if training:
        # dx = gamma invstd (dz - mean(dz) - x_hat mean(dz x_hat))
        values = local_total if total is None else total
        offset, slope = -scale * (sums[0] / values), -scale * (sums[1] / values * known)
        if deferred:
            # the part that the kernel does not cover: its dx contains the recovered sum times that variance
            dgamma = torch.where(corrected, dgamma * variance, dgamma)
    else:
        offset, slope = torch.zeros_like(scale), torch.zeros_like(scale)
        if deferred:
            # the kernel covers sum(dz x), without the mean
            dgamma = torch.where(corrected, -mean * invstd * sum, dgamma)
    # a negative weight gets the gradient of its absolute value
    sign = torch.ones_like(gamma) if weight is None else torch.where(weight < 0, -1.0, 1.0).to(gamma.dtype)
    factor = torch.where(corrected, sign / gamma, 0.0)
    return scale, offset, slope, slope / gamma, torch.stack((dgamma * sign, factor))


def abn_scale_gradient(kernel: Tensor, dkernel: Tensor, dweight: Tensor) -> Tensor:
    """See :func:`seamseg.ops.abn_steps.abn_scale_gradient`."""
    product = (widened(kernel) * widened(dkernel)).flatten(1).sum(1)
    return torch.where(dweight[1] == 0, dweight[0], dweight[0] + product * dweight[1])


def gamma_of(weight: Tensor | None, like: Tensor, eps: float) -> Tensor:
    """Return the scale `|weight| + eps`, in the precision of `like`; 1 without a weight."""
    return torch.ones_like(like) if weight is None else weight.to(like.dtype).abs() + eps


CORRECTED = 16
"""Multiple of the spacing of the stored numbers below which the kernel corrects the gradient of a scale."""


def _rebuild(
    dy: Tensor, y: Tensor, residual: Tensor | None, bias: Tensor, activation: int, parameter: float
) -> tuple[Tensor, Tensor]:
    """Compute `dy act'(z)` and `z - residual - bias`, both new tensors in full precision."""
    wide, dwide = widened(y), widened(dy)
    if activation == _ELU:
        dz: Tensor = torch.ops.aten.elu_backward(dwide, parameter, 1.0, 1.0, True, wide)
    else:
        dz = torch.ops.aten.leaky_relu_backward(dwide, wide, parameter, True)
    z = _deactivate(wide, activation, parameter) - _across(bias, y)
    return dz, z if residual is None else z.sub_(residual)


def _deactivate(y: Tensor, activation: int, parameter: float) -> Tensor:
    """Compute `z` such that `act(z) = y`; where an elu is saturated, a large finite one: its gradient is 0 there."""
    if activation == _ELU:
        floor = torch.finfo(y.dtype).eps - 1
        return torch.where(y > 0, y, torch.log1p((y / parameter).clamp_(floor, 0)))
    return functional.leaky_relu(y, 1 / parameter)


def _across(values: Tensor, x: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (x.dim() - 2))
