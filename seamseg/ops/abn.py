"""Activated batch norm, plain, in-place and synchronised, as functions (docs/contract.md, section 3; arXiv 1712.02616).

"In-place" refers to memory: the input is not kept for the backward pass, which recovers it from the output, a tensor
that the next layer keeps anyway. The input itself is not overwritten: it may be a leaf, a view, or be used again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from ._library import describe, differentiable_once
from .abn_channels import ChannelStatistics, Norm, dense, gradients, normalise
from .abn_recompute import recomputing
from .activation import activate_, check_activation


def abn(
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
) -> Tensor:
    """Apply batch norm, then the activation: `act(x_hat * weight + bias)`.

    Parameters
    ----------
    x : `N x C` or `N x C x ...`
    weight, bias : `C`, or None for 1 and 0
    running_mean, running_var : `C`; updated when training (variance unbiased), used otherwise; None, when training, for
        none
    training : normalise with the statistics of this batch
    momentum : weight of this batch in the running averages
    activation, activation_param : see :data:`seamseg.ops.activation.ACTIVATIONS`

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    norm = Norm(running_mean, running_var, training, momentum, eps, activation, activation_param, None)
    return apply_plain_norm(x, weight, bias, norm)


def apply_plain_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """Compute :func:`abn` with its options as a :class:`Norm`, whose batches are counted."""
    mean, var, training, momentum = norm.running_mean, norm.running_var, norm.training, norm.momentum
    check_input("abn", x, weight, bias, mean, var, training)
    check_activation("abn", norm.activation, norm.parameter)
    count = x.numel() // x.shape[1]
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
    residual: Tensor | None = None,
    deferred: Tensor | None = None,
) -> Tensor:
    """Apply in-place ABN, `act(x_hat * (|weight| + eps) + bias + residual)`, which keeps only its output.

    The activation must be invertible. A negative weight gets the gradient of its absolute value. The output must not be
    changed in place afterwards; the backward pass raises an error if it was.

    Parameters
    ----------
    x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param :
        as for :func:`abn`
    group : ranks that share the statistics of a training step, each weighted by its own count; None for no exchange.
        Every rank of the group must make the call, a rank with an empty `x` too. Gradients of weight and bias stay
        local, as DistributedDataParallel expects.
    residual : added before the activation, in the shape of `x`; None for nothing. The backward pass subtracts
        it again: a residual block keeps only its output, besides the residual, which the layer that made it keeps.
    deferred : result of :func:`seamseg.ops.abn_kernel_gradient.defer_scale_gradient`, where `x` comes from a
        convolution. Scales below the spacing of the numbers that the output is stored in (1/128 of its root mean square
        in bfloat16) get their gradient through its kernel; without it that gradient shrinks with the square of the
        scale.

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    norm = Norm(running_mean, running_var, training, momentum, eps, activation, activation_param, group)
    return apply_norm(x, weight, bias, norm, residual, deferred)


def apply_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    residual: Tensor | None = None,
    deferred: Tensor | None = None,
) -> Tensor:
    """Compute :func:`inplace_abn` with its options as a :class:`Norm`."""
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


def saved_for_backward(ctx: Any) -> tuple[Any, ...]:
    """Return the tensors saved by the forward pass.

    Raises
    ------
    RuntimeError
        if the output, from which the input is recovered, was changed in place, or a residual, weight or bias
    """
    try:
        saved: tuple[Any, ...] = ctx.saved_tensors
        return saved
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            # an error of a part that is recomputed
            raise
        raise RuntimeError(
            "InPlaceABN: its output, or what it was computed with (residual, weight, bias), was changed in place "
            "before the backward pass, which recovers the input from them. "
            "Let no in-place operation follow the layer: nn.ReLU(inplace=False) instead of True, `y = y + x` instead "
            f"of `y += x`; or give the activation to the layer itself. ({error})"
        ) from error


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
        y, (mean, invstd, total) = normalise(x, residual, weight, bias, norm)
        ctx.local_total = None if isinstance(total, Tensor) else total
        ctx.save_for_backward(y, residual, weight, bias, mean, invstd, total if isinstance(total, Tensor) else None)
        return y

    @staticmethod
    @differentiable_once(saved_for_backward)
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        y, residual, weight, bias, mean, invstd, total = saved
        statistics = ChannelStatistics(mean, invstd, ctx.local_total if total is None else total)
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
