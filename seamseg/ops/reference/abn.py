"""The four steps of in-place ABN in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..activation import activate_, activation_gradient, deactivate
from . import widened


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
    return activate_(z, _NAMES[activation], parameter).to(x.dtype)


def abn_backward_reduce(
    dy: Tensor, y: Tensor, residual: Tensor | None, bias: Tensor, activation: int, parameter: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`seamseg.ops.abn_steps.abn_backward_reduce`."""
    dz, z = _rebuild(dy, y, residual, bias, activation, parameter)
    dims = [0, *range(2, y.dim())]
    squares = deactivate(widened(y), _NAMES[activation], parameter).square().sum(dims)
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


_NAMES = ("leaky_relu", "elu")


def _rebuild(
    dy: Tensor, y: Tensor, residual: Tensor | None, bias: Tensor, activation: int, parameter: float
) -> tuple[Tensor, Tensor]:
    """Compute `dy act'(z)` and `z - residual - bias`, both new tensors in full precision."""
    wide = widened(y)
    dz = activation_gradient(widened(dy), wide, _NAMES[activation], parameter)
    z = deactivate(wide, _NAMES[activation], parameter) - _across(bias, y)
    return dz, z if residual is None else z.sub_(residual)


def _across(values: Tensor, x: Tensor) -> Tensor:
    return values.view([1, -1] + [1] * (x.dim() - 2))
