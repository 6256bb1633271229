"""Large stride-1 average pooling in few passes over the map (SPEC section 3 "Semantic head")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ._check import describe

_BAND = 1 << 20
"""Elements of a band of a map on the CPU."""


def box_filter_pool(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Average pooling of stride 1, replicate-padded back to the size of its input.

    The window is clipped to the map; `(k - 1) // 2` rows (columns) are padded before, the rest of the `k - 1` after.
    The cost grows with the logarithm of the window: sums over 2, 4, 8, ... pixels are built from each other, axis by
    axis, which also rounds less than a running sum does.

    Parameters
    ----------
    x : `N x C x H x W`, floating; half precision is summed in float32
    window : (height, width) of the window

    Returns
    -------
    `N x C x H x W`, in the memory format of `x`
    """
    if x.dim() != 4 or not x.is_floating_point() or 0 in x.shape[2:]:
        raise ValueError(f"box_filter_pool: x must be floating N x C x H x W with pixels, got {describe(x)}")
    if min(window) < 1:
        raise ValueError(f"box_filter_pool: window must be positive, got {tuple(window)}")
    return _BoxFilterPool.apply(x, min(window[0], x.shape[2]), min(window[1], x.shape[3]))


class _BoxFilterPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, height: int, width: int) -> Tensor:
        # first the axis that shrinks the map most
        axes = [(2, height), (3, width)]
        if x.shape[2] - height > x.shape[3] - width:
            axes.reverse()
        ctx.axes = axes
        y = _wide(x)
        for dim, k in axes:
            y = _banded(_window_sums, y, dim, k)
        y = y.div_(height * width) if height * width > 1 else y.clone()
        before = [(height - 1) // 2, (width - 1) // 2]
        after = [height - 1 - before[0], width - 1 - before[1]]
        y = functional.pad(y, (before[1], after[1], before[0], after[0]), mode="replicate")
        # a map of one row or column has no memory format to pass on
        return y.to(x.dtype).contiguous(memory_format=_memory_format(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        dx = _wide(dy)
        count = 1
        for dim, k in ctx.axes:
            dx = _unpad(dx, dim, k)
            count *= k
        dx = dx / count
        for dim, k in reversed(ctx.axes):
            dx = _banded(_spread, dx, dim, k)
        return dx.to(dy.dtype), None, None


def _memory_format(x: Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _banded(function: Callable[[Tensor, int, int], Tensor], x: Tensor, dim: int, k: int) -> Tensor:
    """Run a function along one axis of large maps in bands of the other: temporaries stay small and in the cache."""
    other = 5 - dim
    step = max(1, _BAND * x.shape[other] // max(x.numel(), 1))
    if x.device.type != "cpu" or step >= x.shape[other]:
        return function(x, dim, k)
    bands = [function(band, dim, k) for band in x.split(step, other)]
    return torch.cat(bands, other)


def _window_sums(x: Tensor, dim: int, k: int) -> Tensor:
    """Sums over all windows of k neighbours along an axis; k's binary digits say which powers of two make one up."""
    size = x.shape[dim]
    if k == size:
        return x.sum(dim, keepdim=True)
    out: Tensor | None = None
    done, power = 0, 1
    while True:
        if k & power:
            part = x.narrow(dim, done, size - k + 1)
            out = part if out is None else out + part
            done += power
        if out is not None and done == k:
            return out
        shorter = x.shape[dim] - power
        x = x.narrow(dim, 0, shorter) + x.narrow(dim, power, shorter)
        power *= 2


def _spread(x: Tensor, dim: int, k: int) -> Tensor:
    """The adjoint of window sums: every value goes to the k pixels of its window."""
    if x.shape[dim] == 1:
        return x.repeat_interleave(k, dim)
    if k == 1:
        return x
    before_after = (k - 1, k - 1, 0, 0) if dim == 3 else (0, 0, k - 1, k - 1)
    return _window_sums(functional.pad(x, before_after), dim, k)


def _unpad(dy: Tensor, dim: int, k: int) -> Tensor:
    """The adjoint of replicate padding by k - 1 along an axis: what fell on the padding goes to the edge."""
    inner = dy.shape[dim] - k + 1
    before = (k - 1) // 2
    if inner == 1:
        return dy.sum(dim, keepdim=True)
    out = dy.narrow(dim, before, inner).clone()
    out.narrow(dim, 0, 1).add_(dy.narrow(dim, 0, before).sum(dim, keepdim=True))
    out.narrow(dim, inner - 1, 1).add_(dy.narrow(dim, before + inner, k - 1 - before).sum(dim, keepdim=True))
    return out
