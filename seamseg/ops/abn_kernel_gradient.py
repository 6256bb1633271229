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
from torch.autograd.function import once_differentiable


def defer_scale_gradient(kernel: Tensor, weight: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Have the gradients of small scales of :func:`seamseg.ops.abn.inplace_abn` computed by the kernel before it.

    Parameters
    ----------
    kernel : kernel of a layer whose output, linear in the kernel, is the input of the norm
    weight : weight of the norm, `C`
    dim : dimension of the output channels of `kernel`

    Returns
    -------
    kernel : the same, to be used in this call of the layer
    deferred : `C` zeros, the argument of that name of the norm
    """
    result: tuple[Tensor, Tensor] = _DeferScaleGradient.apply(kernel, weight, dim)
    return result


def scale_gradient(kernel: Tensor, dkernel: Tensor, factor: Tensor, dim: int = 0) -> Tensor:
    """Compute `factor <kernel, dkernel>` over all dimensions but `dim`: `C`, in the precision of `factor`."""
    product = _needed_product if factor.device.type == "cpu" else _product
    result: Tensor = product(kernel.detach(), dkernel, factor, dim)
    return result


def _product(kernel: Tensor, dkernel: Tensor, factor: Tensor, dim: int) -> Tensor:
    dims = [d for d in range(kernel.dim()) if d != dim]
    return (kernel.to(factor.dtype) * dkernel.to(factor.dtype)).sum(dims) * factor


# an operator, since what it does depends on values: on a GPU the host would have to wait for them
@torch.library.custom_op("seamseg_training::scale_gradient", mutates_args=(), device_types="cpu")
def _needed_product(kernel: Tensor, dkernel: Tensor, factor: Tensor, dim: int) -> Tensor:
    """Compute :func:`_product` unless all factors are 0, as nearly always in float32: it reads all weights."""
    return _product(kernel, dkernel, factor, dim) if factor.any() else torch.zeros_like(factor)


@_needed_product.register_fake
def _(kernel: Tensor, dkernel: Tensor, factor: Tensor, dim: int) -> Tensor:
    return torch.empty_like(factor)


class _DeferScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Tensor, weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(kernel)
        ctx.dim, ctx.dtype = dim, weight.dtype
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return kernel.view_as(kernel), weight.new_zeros(weight.shape, dtype=wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkernel: Tensor, factor: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (kernel,) = ctx.saved_tensors
        # on a CPU the host knows without waiting; in float32 there is hardly ever such a channel
        return dkernel, scale_gradient(kernel, dkernel, factor, ctx.dim).to(ctx.dtype), None
