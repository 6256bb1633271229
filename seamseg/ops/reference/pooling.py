"""Large stride-1 average pooling in few passes over the map, in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops.reference import widened

_BAND = 1 << 20
"""Elements of a band of a map on the CPU."""


def box_filter_pool(x: Tensor, height: int, width: int) -> Tensor:
    """See :func:`seamseg.ops.pooling.box_filter_pool`; arguments are not checked.

    Sums over 2, 4, 8, ... pixels are built from each other, axis by axis, with less rounding than a running sum.
    """
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=memory_format(x))
    height, width = min(height, x.shape[2]), min(width, x.shape[3])
    y = widened(x)
    for dim, k in _axes(x, height, width):
        y = _banded(_window_sums, y, dim, k)
    y = y.div_(height * width) if height * width > 1 else y.clone()
    before = [(height - 1) // 2, (width - 1) // 2]
    after = [height - 1 - before[0], width - 1 - before[1]]
    y = functional.pad(y, (before[1], after[1], before[0], after[0]), mode="replicate")
    return _as_format(y.to(x.dtype), memory_format(x))


def box_filter_pool_backward(dy: Tensor, height: int, width: int) -> Tensor:
    """Apply the adjoint of :func:`box_filter_pool`: the gradient of its input, `N x C x H x W`."""
    if dy.numel() == 0:
        return torch.empty_like(dy, memory_format=memory_format(dy))
    height, width = min(height, dy.shape[2]), min(width, dy.shape[3])
    axes = _axes(dy, height, width)
    dx = widened(dy)
    for dim, k in axes:
        dx = _unpad(dx, dim, k)
    dx = dx / (height * width)
    for dim, k in reversed(axes):
        dx = _banded(_spread, dx, dim, k)
    return _as_format(dx.to(dy.dtype), memory_format(dy))


def memory_format(x: Tensor) -> torch.memory_format:
    """Return the memory format of results: that of the map, channels last where it is not dense."""
    # the memory format of a map of one row or column is ambiguous
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


def _as_format(y: Tensor, wanted: torch.memory_format) -> Tensor:
    """Return `y` with exactly the strides of a new tensor of the format, axes of one element included."""
    if y.stride() == torch.empty_like(y, memory_format=wanted, device="meta").stride():
        return y
    return torch.empty_like(y, memory_format=wanted).copy_(y)


def _axes(x: Tensor, height: int, width: int) -> list[tuple[int, int]]:
    """Return both axes with their windows, first the one that shrinks the map most."""
    axes = [(2, height), (3, width)]
    return axes[::-1] if x.shape[2] - height > x.shape[3] - width else axes


def _banded(function: Callable[[Tensor, int, int], Tensor], x: Tensor, dim: int, k: int) -> Tensor:
    """Apply a function along one axis of large maps in bands of the other, so that temporaries fit the cache."""
    other = 5 - dim
    step = max(1, _BAND * x.shape[other] // max(x.numel(), 1))
    if x.device.type != "cpu" or step >= x.shape[other]:
        return function(x, dim, k)
    bands = [function(band, dim, k) for band in torch.split(x, step, other)]
    return torch.cat(bands, other)


def _window_sums(x: Tensor, dim: int, k: int) -> Tensor:
    """Sum all windows of k neighbours along an axis, composed of powers of two by the binary digits of k."""
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
    """Apply the adjoint of window sums: every value is added to the k pixels of its window."""
    if x.shape[dim] == 1:
        return x.repeat_interleave(k, dim)
    if k == 1:
        return x
    before_after = (k - 1, k - 1, 0, 0) if dim == 3 else (0, 0, k - 1, k - 1)
    return _window_sums(functional.pad(x, before_after), dim, k)


def _unpad(dy: Tensor, dim: int, k: int) -> Tensor:
    """Apply the adjoint of replicate padding by k - 1 along an axis: values on the padding are added to the edge."""
    inner = dy.shape[dim] - k + 1
    before = (k - 1) // 2
    if inner == 1:
        return dy.sum(dim, keepdim=True)
    out = dy.narrow(dim, before, inner).clone()
    out.narrow(dim, 0, 1).add_(dy.narrow(dim, 0, before).sum(dim, keepdim=True))
    out.narrow(dim, inner - 1, 1).add_(dy.narrow(dim, before + inner, k - 1 - before).sum(dim, keepdim=True))
    return out
