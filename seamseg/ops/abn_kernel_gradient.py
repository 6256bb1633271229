"""The gradient of a small scale from the kernel before the norm, as the output of the norm does not resolve it.

In-place ABN recovers `x_hat` from an output `act(gamma x_hat + beta + residual)` that was rounded when it was stored.
Where `gamma` is below the spacing of these numbers, `x_hat` is lost, and `dL/dgamma = sum(dz x_hat)` cannot be computed
from it. But `x` is linear in the kernel `W` of the convolution before the norm, so that with
`dx = gamma invstd (dz - mean(dz))`

    <W, dL/dW> = sum(dx x) = gamma sum(dz x_hat) = gamma dL/dgamma

which costs a product of the size of the kernel: no map is kept or read, and the host does not wait. Such channels omit
the third term of `dx = gamma invstd (dz - mean(dz) - x_hat mean(dz x_hat))`. Where `x_hat` is recovered
roughly, the whole `dx` is used, and `<W, dL/dW>` is `gamma (S - S' var(x_hat))` with the true and the recovered sum
`S`, `S'`, up to a product of two errors: adding `gamma S' var(x_hat)` corrects the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seamseg.ops._library import differentiable_once
from seamseg.ops.abn import dense
from seamseg.ops.abn_steps import abn_scale_gradient
from seamseg.ops.reference import abn as plain
from seamseg.ops.reference import wide


def defer_scale_gradient(kernel: Tensor, weight: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Have the gradient of the weight of a norm, `C`, computed by the kernel before it, where scales are small.

    `dim` has the output channels of the kernel, in which the input of the norm must be linear. Return the
    kernel, to be used in this call of the layer, and the argument `deferred` of :func:`seamseg.ops.abn.inplace_abn`,
    `2 x C`: its gradient is the gradient of the weight, and a factor.
    """
    result: tuple[Tensor, Tensor] = _DeferScaleGradient.apply(kernel, weight, dim)
    return result


def scale_gradient(kernel: Tensor, dkernel: Tensor, dweight: Tensor, dtype: torch.dtype, dim: int = 0) -> Tensor:
    """Compute the gradient of the weight of a norm, `C`, from the kernel before it, its gradient, and the sums.

    `dweight` is :attr:`seamseg.ops.abn.GradientSums.dweight`, `dtype` belongs to the weight, `dim` has the output
    channels of the kernel.
    """
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
