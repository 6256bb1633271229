"""Activated batch norm, plain, in-place and synchronised, as functions (SPEC section 3; arXiv 1712.02616).

"In-place" is about memory: the input is not kept for the backward pass, which rebuilds what it needs from the output,
the very tensor that the next layer keeps anyway. The input itself is not overwritten: it may be a leaf, a view, or be
used again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from ._check import describe
from .abn_channels import Norm, Statistics, dense, gradients, normalise
from .abn_replay import replaying
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
    """Batch norm, then the activation: `act(x_hat * weight + bias)`.

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
    check_input("abn", x, weight, bias, running_mean, running_var, training)
    check_activation("abn", activation, activation_param)
    count = x.numel() // x.shape[1]
    if training and count < 2:
        # one value has no variance (x_hat is 0), none has no mean: the running averages keep what they have
        like = x if weight is None else weight
        mean, var = (like.new_ones(x.shape[1]) if s is None else s.clone() for s in (running_mean, running_var))
        running_mean, running_var, training = mean, var, count == 1
    if training and replaying():
        # the running averages have seen this batch
        running_mean, running_var = (None if s is None else s.clone() for s in (running_mean, running_var))
    y = torch.batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, torch.backends.cudnn.enabled
    )
    return activate_(y, activation, activation_param)


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
    """In-place ABN: `act(x_hat * (|weight| + eps) + bias + residual)`, keeping only its output for the backward pass.

    The activation must be invertible. A negative weight gets the gradient of its absolute value. The output must not be
    changed in place afterwards; the backward pass says so if it was.

    Parameters
    ----------
    x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param :
        as for :func:`abn`
    group : ranks that share the statistics of a training step, each weighted by its own count; None for this one alone.
        Every rank of the group must make the call, a rank with an empty `x` too. Gradients of weight and bias stay
        local, as DistributedDataParallel wants them.
    residual : added before the activation, in the shape of `x`; None for nothing. The sum is undone in the backward
        pass: of a residual block only its output stays in memory, besides the residual, which its producer keeps.
    deferred : from :func:`seamseg.ops.abn_kernel_gradient.defer_scale_gradient`, where `x` comes from a convolution.
        Scales below the spacing of the numbers that the output is stored in (1/128 of its root mean square in bfloat16)
        get their gradient through its kernel; without it that gradient shrinks with the square of the scale.

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
    """:func:`inplace_abn` with its options as a :class:`Norm`."""
    check_input("inplace_abn", x, weight, bias, norm.running_mean, norm.running_var, norm.training)
    check_activation("inplace_abn", norm.activation, norm.parameter, invertible=True)
    if residual is not None:
        if residual.shape != x.shape or residual.device != x.device:
            raise ValueError(f"inplace_abn: residual must be like the input, got {describe(residual)}, {describe(x)}")
        residual = residual.to(x.dtype)
    tensors = (x, residual, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _InPlaceABN.apply(*tensors, deferred, *norm)
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
    """The tensors a forward pass left, or words on why they are spoilt.

    Raises
    ------
    RuntimeError
        if the output, from which everything is rebuilt, was changed in place, or a residual that is needed for it
    """
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            # a part that is run again on the way may fail for reasons of its own
            raise
        raise RuntimeError(
            "InPlaceABN: its output, or what it was computed with (residual, weight, bias), was changed in place "
            "before the backward pass, which rebuilds the input from them. "
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
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple:
        y, residual, weight, bias, mean, invstd, total = saved_for_backward(ctx)
        statistics = Statistics(mean, invstd, ctx.local_total if total is None else total)
        dy = dense(dy, like=y)
        dx, dresidual, sums = gradients(dy, y, residual, weight, bias, ctx.norm, statistics, ctx.deferred)
        needs_x, needs_residual, needs_weight, needs_bias = ctx.needs_input_grad[:4]
        return (
            dx if needs_x else None,
            dresidual if needs_residual else None,
            sums.dweight if needs_weight else None,
            sums.dbias if needs_bias else None,
            sums.deferred if ctx.deferred else None,
            *[None] * len(ctx.norm),
        )
