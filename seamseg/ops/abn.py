"""Activated batch norm, plain, in-place and synchronised, as functions (SPEC section 3; arXiv 1712.02616).

"In-place" is about memory: the input is not kept for the backward pass, which rebuilds what it needs from the output,
the very tensor that the next layer keeps anyway. The input itself is not overwritten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from ._check import describe
from .activation import activate_, activation_gradient, deactivate


def abn(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str = "leaky_relu",
    activation_param: float = 0.01,
) -> Tensor:
    """Batch norm, then the activation: `act(x_hat * weight + bias)`.

    Parameters
    ----------
    x : `N x C` or `N x C x ...`
    weight, bias : `C`, or None for 1 and 0
    running_mean, running_var : `C`; updated when training (variance unbiased), used otherwise
    training : normalise with the statistics of this batch
    momentum : weight of this batch in the running averages
    activation, activation_param : see :data:`seamseg.ops.activation.ACTIVATIONS`

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    check_input("abn", x, running_mean)
    count = x.numel() // x.shape[1]
    if training and count < 2:
        # one value has no variance (x_hat is 0), none has no mean: the running averages keep what they have
        running_mean, running_var = running_mean.clone(), running_var.clone()
        training = count == 1
    y = torch.batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, torch.backends.cudnn.enabled
    )
    return activate_(y, activation, activation_param)


def inplace_abn(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str = "leaky_relu",
    activation_param: float = 0.01,
    group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """In-place ABN: `act(x_hat * (|weight| + eps) + bias)`, keeping only its output for the backward pass.

    The activation must be invertible. A negative weight gets the gradient of its absolute value.

    Parameters
    ----------
    x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param :
        as for :func:`abn`
    group : ranks that share the statistics of a training step, each weighted by its own count; None for this one alone.
        Every rank of the group must make the call, a rank with an empty `x` too. Gradients of weight and bias stay
        local, as DistributedDataParallel wants them.

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    check_input("inplace_abn", x, running_mean)
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    if not training and not tracked:
        gamma = None if weight is None else weight.abs() + eps
        return abn(x, gamma, bias, running_mean, running_var, False, momentum, eps, activation, activation_param)
    return _InPlaceABN.apply(
        x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param, group
    )


def check_input(op: str, x: Tensor, running_mean: Tensor) -> None:
    """Require `N x C x ...` with the `C` of the running statistics, on their device."""
    if x.dim() < 2 or x.shape[1] != running_mean.shape[0] or not x.is_floating_point():
        raise ValueError(f"{op}: input must be floating, N x {running_mean.shape[0]} x ..., got {describe(x)}")
    if x.device != running_mean.device:
        raise ValueError(f"{op}: input is on {x.device}, the layer on {running_mean.device}; move one of them")


class _InPlaceABN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
        activation: str,
        param: float,
        group: distributed.ProcessGroup | None,
    ) -> Tensor:
        gamma = None if weight is None else weight.abs() + eps
        count = x.numel() // x.shape[1]
        total: Tensor | None = None
        if not training:
            y, mean, invstd = _normalise(x, gamma, bias, running_mean, running_var, eps)
        elif group is not None:
            mean, var, total = _group_statistics(x, count, running_mean.dtype, group)
            y, _, invstd = _normalise(x, gamma, bias, mean, var, eps)
            _update(running_mean, running_var, mean, var, total, momentum)
        elif count > 1:
            y, _, invstd = torch.native_batch_norm(x, gamma, bias, running_mean, running_var, True, momentum, eps)
        else:
            # no variance from one value: x_hat is 0 and the running averages stay as they are
            mean = x.detach().sum([0, *range(2, x.dim())]).to(running_mean.dtype)
            y, _, invstd = _normalise(x, gamma, bias, mean, torch.zeros_like(running_var), eps)
        y = activate_(y, activation, param)
        ctx.save_for_backward(y, weight, bias, invstd, total)
        ctx.settings = training, eps, activation, param, group
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple:
        y, weight, bias, invstd, total = ctx.saved_tensors
        training, eps, activation, param, group = ctx.settings
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if y.is_contiguous(memory_format=torch.channels_last):
            dy = dy.contiguous(memory_format=torch.channels_last)
        dz = activation_gradient(dy, y, activation, param)
        z = deactivate(y, activation, param)
        # With z for the input, bias for the mean and 1/gamma for the inverse deviation the native kernel sees
        # x_hat = (z - bias) / gamma without anybody storing it; its factor weight * invstd must then come out as
        # gamma * (true invstd).
        gamma = torch.ones_like(invstd) if weight is None else weight.abs() + eps
        centre = torch.zeros_like(invstd) if bias is None else bias
        local = training and group is None
        mask = [needs_x, needs_weight or group is not None, needs_bias or group is not None]
        if y.numel():
            dx, dgamma, dbias = torch.ops.aten.native_batch_norm_backward(
                dz, z, gamma * gamma * invstd, centre, gamma * gamma, centre, 1 / gamma, local, 0.0, mask
            )
        else:
            dx, dgamma, dbias = torch.zeros_like(y), torch.zeros_like(invstd), torch.zeros_like(invstd)
        if training and group is not None:
            sums = torch.stack((dbias, dgamma))
            distributed.all_reduce(sums, group=group)
            mean_dz, mean_dz_x = sums / total.to(sums.dtype)
            # dx = gamma invstd (dz - mean_dz - x_hat mean_dz_x), the first term is there already
            slope = mean_dz_x * invstd
            offset = gamma * invstd * mean_dz - slope * centre
            if needs_x:
                shape = [1, -1] + [1] * (y.dim() - 2)
                dx = dx.to(offset.dtype).sub_(offset.view(shape))
                dx = dx.addcmul_(z.to(offset.dtype), slope.view(shape), value=-1).to(y.dtype)
        if needs_weight:
            dgamma = torch.where(weight < 0, -dgamma, dgamma)
        return dx, dgamma if needs_weight else None, dbias if needs_bias else None, *[None] * 8


def _normalise(
    x: Tensor, gamma: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    # the native kernels divide by the size of the input
    y = torch.native_batch_norm(x, gamma, bias, mean, var, False, 0.0, eps)[0] if x.numel() else x.clone()
    return y, mean, torch.rsqrt(var + eps)


def _group_statistics(
    x: Tensor, count: int, dtype: torch.dtype, group: distributed.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all ranks of a group, exact for uneven counts (SPEC section 3).

    The count stays a tensor (at least 1), so that nothing here waits for the device.
    """
    channels = x.shape[1]
    local = x.new_zeros(2 * channels + 1, dtype=torch.float64)
    if count:
        mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
        local[:channels], local[channels:-1] = mean, var
        local[-1].fill_(count)
    gathered = local.new_empty(distributed.get_world_size(group) * local.numel())
    distributed.all_gather_into_tensor(gathered, local, group=group)
    gathered = gathered.view(-1, local.numel())
    means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
    total = counts.sum().clamp(min=1)
    mean = (counts * means).sum(0) / total
    var = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean.to(dtype), var.to(dtype), total


def _update(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, total: Tensor, momentum: float
) -> None:
    # one value has no unbiased variance: the running averages stay as they are
    share = torch.where(total > 1, momentum, 0.0).to(mean.dtype)
    unbiased = var * (total / (total - 1).clamp(min=1)).to(var.dtype)
    running_mean.lerp_(mean, share)
    running_var.lerp_(unbiased, share)
