"""The steps of in-place ABN as operators (docs/contract.md, section 3; arXiv 1712.02616).

Four of them read and write tensors of the size of the input. Between them is arithmetic with one number a channel, one
operator in each direction, and the synchronisation over processes (:mod:`seamseg.ops.abn`). Numbers per
channel are float32, or float64 for a float64 input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import define
from seamseg.ops.reference import abn as plain
from seamseg.ops.reference import wide


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
