"""Large stride-1 average pooling in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops._library import widened


def box_filter_pool(x: Tensor, height: int, width: int) -> Tensor:
    """See :func:`seamseg.ops.pooling.box_filter_pool`; arguments are not checked."""
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=memory_format(x))
    height, width = min(height, x.shape[2]), min(width, x.shape[3])
    # axis by axis: the cost of a window is its height plus its width
    y = functional.avg_pool2d(widened(x), (height, 1), 1)
    y = functional.avg_pool2d(y, (1, width), 1)
    before = [(height - 1) // 2, (width - 1) // 2]
    after = [height - 1 - before[0], width - 1 - before[1]]
    y = functional.pad(y, (before[1], after[1], before[0], after[0]), mode="replicate")
    return _as_format(y.to(x.dtype), memory_format(x))


def box_filter_pool_backward(dy: Tensor, height: int, width: int) -> Tensor:
    """Apply the adjoint of :func:`box_filter_pool`: the gradient of its input, `N x C x H x W`."""
    if dy.numel() == 0:
        return torch.empty_like(dy, memory_format=memory_format(dy))
    height, width = min(height, dy.shape[2]), min(width, dy.shape[3])
    dx = _unpad(_unpad(widened(dy), 2, height), 3, width)
    for window in ((1, width), (height, 1)):
        shape = (*dx.shape[:2], dx.shape[2] + window[0] - 1, dx.shape[3] + window[1] - 1)
        options = ([1, 1], [0, 0], False, True, None)
        dx = torch.ops.aten.avg_pool2d_backward(dx, dx.new_empty(shape), list(window), *options)
    return _as_format(dx.to(dy.dtype), memory_format(dy))


def memory_format(x: Tensor) -> torch.memory_format:
    """Return the memory format of results: as the map, channels last where it is not dense."""
    # the memory format of a map of one row or column is ambiguous
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


def _as_format(y: Tensor, wanted: torch.memory_format) -> Tensor:
    """Return `y` with exactly the strides of a new tensor of the format, axes of one element included."""
    if y.stride() == torch.empty_like(y, memory_format=wanted, device="meta").stride():
        return y
    return torch.empty_like(y, memory_format=wanted).copy_(y)


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
