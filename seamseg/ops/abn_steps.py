"""The steps of in-place ABN (docs/contract.md, section 3; arXiv 1712.02616): operators, statistics, sums of gradients.

Four operators read and write tensors of the size of the input. Between them is arithmetic with one number a channel,
one operator in each direction, and the synchronisation over processes. Numbers per channel are float32, or float64 for
a float64 input.

Where a scale `gamma` is below the spacing of the stored numbers, `x_hat` is lost (docs/design/abn_small_scales.md).
Its gradient is `<W, dL/dW> / gamma` then, of the kernel `W` before the norm, and `dx` omits its third term. Where
`x_hat` is recovered roughly, the whole `dx` is used, and `<W, dL/dW>` is `gamma (S - S' var(x_hat))` with the true and
the recovered sum `S`, `S'` of `dz x_hat`, up to a product of two errors: adding `gamma S' var(x_hat)` corrects it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from seamseg.ops._library import define, differentiable_once, wide
from seamseg.ops.reference import abn as plain


def _channels(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], dtype=wide(x.dtype))


abn_statistics = define("abn_statistics", plain.abn_statistics, lambda x: (_channels(x), _channels(x)))
"""Mean and biased variance of each channel of `N x C x ...`; 0 for an empty input."""

abn_transform = define(
    "abn_transform",
    plain.abn_transform,
    lambda x, mean, scale, bias, residual, activation, parameter: torch.empty_like(x),
)
"""`act((x - mean) * scale + bias + residual)`; x dense, residual like x."""

abn_backward_reduce = define(
    "abn_backward_reduce",
    plain.abn_backward_reduce,
    lambda dy, y, residual, bias, activation, parameter: (_channels(y), _channels(y), _channels(y)),
)
"""Sums over the pixels of `dz = dy act'(z)`, of `dz (z - residual - bias)` and of `z^2`, with `act(z) = y`."""

abn_backward_input = define(
    "abn_backward_input",
    plain.abn_backward_input,
    lambda dy, y, residual, bias, scale, offset, slope, activation, parameter: (
        torch.empty_like(y),
        y.new_empty(0) if residual is None else torch.empty_like(y),
    ),
)
"""`scale dz + offset + slope (z - residual - bias)`, and `dz`: the gradients of input and residual (else empty)."""

abn_forward_channels = define(
    "abn_forward_channels",
    plain.abn_forward_channels,
    lambda mean, var, total, weight, *rest: (torch.empty_like(mean), torch.empty_like(mean)),
)
"""`1 / sqrt(var + eps)` and that times `|weight| + eps`; adds the batch to the running averages, if it has two values.

var : biased
total : count of values over all ranks, float64 scalar; None for `count`
batches : int64 scalar, counts the batch; without a momentum the averages are plain averages over the batches
"""

abn_backward_channels = define(
    "abn_backward_channels",
    plain.abn_backward_channels,
    lambda sum, *rest: (*(torch.empty_like(sum) for _ in range(4)), sum.new_empty(2, sum.shape[0])),
)
"""Coefficients of the gradient of the input and the gradient of the weight, from the sums of `abn_backward_reduce`.

The gradient of the input is `scale dz + offset + slope x_hat`, with `slope x_hat = slope_of_z (z - residual - bias)`.
`dweight`, `2 x C`, has the gradient of the weight, and a factor for :func:`abn_scale_gradient`, 0 in most channels.

joint : `4 x C`: sum, moment / gamma, squares and count over all ranks; None for this rank alone
total, local_total : count of values of the batch statistics: a float64 scalar, or with None a number
count : number of values in the sums
spacing : between stored numbers at 1
deferred : compute the gradients of weights below the spacing for :func:`abn_scale_gradient`
"""

abn_scale_gradient = define(
    "abn_scale_gradient", plain.abn_scale_gradient, lambda kernel, dkernel, dweight: torch.empty_like(dweight[0])
)
"""`dweight[0] + dweight[1] <kernel, dkernel>` for each of the channels, which are the first dimension of the kernel.

The kernel of channels whose factor is 0 is not read.
"""


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


def batch_statistics(
    mean: Tensor, var: Tensor, count: int, weight: Tensor | None, norm: Norm
) -> tuple[ChannelStatistics, Tensor]:
    """Join mean, biased variance and count over the ranks; return them and `gamma invstd`; update the averages."""
    total: Tensor | None = None
    if norm.group is not None:
        mean, var, total = _join(mean, var, count, norm.group)
    # the compiler fuses plain operators
    channels = plain.abn_forward_channels if torch.compiler.is_compiling() else abn_forward_channels
    invstd, scale = channels(
        mean,
        var,
        total,
        None if weight is None else weight.to(var.dtype).contiguous(),
        norm.running_mean,
        norm.running_var,
        norm.batches,
        norm.momentum,
        norm.eps,
        count,
    )
    return ChannelStatistics(mean, invstd, total, count), scale


def _join(mean: Tensor, var: Tensor, count: int, group: distributed.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Combine mean, biased variance and count over a group; the count, at least 1, stays on the device."""
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


class GradientSums(NamedTuple):
    """The results of :func:`abn_backward_channels`, and the gradient of the bias."""

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
    """Compute the sums over pixels and ranks for the gradients; those of parameters are of this rank alone.

    A channel is unresolved if `gamma x_hat` is less than the spacing of the numbers that `y` is stored in, at the root
    mean square of `z` (1/128 of it in bfloat16): `x_hat` cannot be recovered there. With `deferred` the gradient of
    gamma comes from the kernel before the norm, which also corrects it for scales up to 16 spacings; else it shrinks
    with the square of gamma over the spacing.
    """
    mean, invstd, total, values = statistics
    dbias, moment, squares = abn_backward_reduce(dy, y, residual, bias_of(bias, invstd), *norm.code)
    count, joint = count_of(y), None
    if norm.training and norm.group is not None:
        dgamma = moment / plain.gamma_of(weight, invstd, norm.eps)
        joint = torch.stack((dbias, dgamma, squares, torch.full_like(dbias, count)))
        distributed.all_reduce(joint, group=norm.group)
    channels = plain.abn_backward_channels if torch.compiler.is_compiling() else abn_backward_channels
    coefficients = channels(
        dbias,
        moment,
        squares,
        joint,
        total,
        mean,
        invstd,
        None if weight is None else weight.to(invstd.dtype).contiguous(),
        norm.training,
        deferred,
        count,
        float(max(values, 1)),
        norm.eps,
        torch.finfo(y.dtype).eps,
    )
    return GradientSums(*coefficients, dbias if bias is None else dbias.to(bias.dtype))


def defer_scale_gradient(kernel: Tensor, weight: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Have the gradient of the weight of a norm, `C`, computed by the kernel before it, where scales are small.

    `dim` has the output channels of the kernel, in which the input of the norm must be linear. Return the
    kernel, to be used in this call of the layer, and the argument `deferred` of :func:`seamseg.ops.abn.inplace_abn`,
    `2 x C`: its gradient is the gradient of the weight, and a factor.
    """
    result: tuple[Tensor, Tensor] = _DeferScaleGradient.apply(kernel, weight, dim)
    return result


def scale_gradient(kernel: Tensor, dkernel: Tensor, dweight: Tensor, dtype: torch.dtype, dim: int = 0) -> Tensor:
    """Compute the gradient of the weight, `C` in `dtype`, from the kernel before, its gradient and the sums."""
    kernel = dense(kernel.detach().movedim(dim, 0))
    product = plain.abn_scale_gradient if torch.compiler.is_compiling() else abn_scale_gradient
    dkernel = dense(dkernel.to(kernel.dtype).movedim(dim, 0), like=kernel)
    return product(kernel, dkernel, dweight.to(wide(kernel.dtype)).contiguous()).to(dtype)


class _DeferScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Tensor, weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(kernel)
        ctx.dim, ctx.dtype = dim, weight.dtype
        # its values are not used: no memory, unless it needs another dtype for its gradient
        dtype = wide(weight.dtype)
        deferred = weight.expand(2, -1) if weight.dtype == dtype else weight.new_zeros(2, *weight.shape, dtype=dtype)
        return kernel.view_as(kernel), deferred

    @staticmethod
    @differentiable_once
    def backward(
        ctx: Any, saved: tuple[Tensor], dkernel: Tensor, dweight: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        (kernel,) = saved
        return dkernel, scale_gradient(kernel, dkernel, dweight, ctx.dtype, ctx.dim), None


def count_of(x: Tensor) -> int:
    """Return the number of values of each channel."""
    return x.numel() // x.shape[1]


def bias_of(bias: Tensor | None, like: Tensor) -> Tensor:
    """Return the bias in the precision of `like`; 0 without one."""
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype)


def dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Return `x` in a memory format of the steps: of `like`, or its own if contiguous or channels last."""
    if like is not None:
        return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()
