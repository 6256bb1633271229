"""The gradient of a norm's scale from that of the kernel before it, where the norm's own output does not resolve it.

In-place ABN rebuilds `x_hat` from an output `act(gamma x_hat + beta + residual)` that was rounded when it was stored.
Where `gamma` is below the spacing of these numbers nothing of `x_hat` is left, and `dL/dgamma = sum(dz x_hat)` cannot
be had from it. But `x` is linear in the kernel `W` of the convolution before the norm, so that with
`dx = gamma invstd (dz - mean(dz))`

    <W, dL/dW> = sum(dx x) = gamma sum(dz x_hat) = gamma dL/dgamma

which costs a product of the size of the kernel: no map is kept or read, and nothing waits for the device. Such channels
go without the third term of `dx = gamma invstd (dz - mean(dz) - x_hat mean(dz x_hat))`. Where `x_hat` is rebuilt, but
roughly, the whole `dx` is used, and `<W, dL/dW>` is `gamma (S - S' var(x_hat))` with the true and the rebuilt sum `S`,
`S'`, up to a product of two errors: added to `gamma S' var(x_hat)` it corrects.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def defer_scale_gradient(kernel: Tensor, weight: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Let :func:`seamseg.ops.abn.inplace_abn` leave gradients of some scales to the kernel before it.

    Parameters
    ----------
    kernel : of a layer whose output, linear in the kernel, is the input of the norm
    weight : `C`, of the norm
    dim : that of the output channels in `kernel`

    Returns
    -------
    kernel : the same, to be used in this call of the layer
    deferred : `C` zeros, the norm's argument of that name
    """
    return _DeferScaleGradient.apply(kernel, weight, dim)


def scale_gradient(kernel: Tensor, dkernel: Tensor, factor: Tensor, dim: int = 0) -> Tensor:
    """`factor <kernel, dkernel>` over all dimensions but `dim`: `C`, in the precision of `factor`."""
    dims = [d for d in range(kernel.dim()) if d != dim]
    return (kernel.detach().to(factor.dtype) * dkernel.to(factor.dtype)).sum(dims) * factor


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
        return dkernel, scale_gradient(kernel, dkernel, factor, ctx.dim).to(ctx.dtype), None
