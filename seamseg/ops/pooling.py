"""Large stride-1 average pooling in few passes, and small poolings that keep little for the backward pass.

The large one belongs to the semantic head (docs/contract.md, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops._library import define
from seamseg.ops.reference import pooling as plain
from seamseg.ops.reference.pooling import memory_format


def box_filter_pool(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Apply average pooling of stride 1, replicate-padded back to the size of its input.

    The window is clipped to the map; `(k - 1) // 2` rows (columns) are padded before, the rest of the `k - 1` after.
    The cost hardly grows with the window: one pass over the map. Every window is a sum of its own pixels only, so that
    large values elsewhere cause no rounding error, as they would in a running sum. Map `N x C x H x W` to the same
    shape and memory format; half precision is summed in float32. The window is (height, width).
    """
    return _box_filter_pool(x, window[0], window[1])


def _fake(x: Tensor, height: int, width: int) -> Tensor:
    return torch.empty_like(x, memory_format=memory_format(x))


_box_filter_pool_backward = define("box_filter_pool_backward", plain.box_filter_pool_backward, _fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.window = inputs[1:]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
    return _box_filter_pool_backward(dy, *ctx.window), None, None


_box_filter_pool = define("box_filter_pool", plain.box_filter_pool, _fake, _backward, _setup_context)


class MaxPool3x3(nn.MaxPool2d):
    """3x3 max pooling, padded by 1, that keeps a byte for each maximum for the backward pass: its place in the window.

    torch keeps the input and an int64 index. Values and gradients are the same.
    """

    def __init__(self, stride: int) -> None:
        super().__init__(3, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x H x W` to `N x C x h x w`."""
        tracked = torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()
        y: Tensor = _MaxPool.apply(x, self.stride) if tracked and x.shape[3] >= 3 else super().forward(x)
        return y


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        y, index = functional.max_pool2d_with_indices(x, [3, 3], [stride, stride], [1, 1])
        ctx.stride, ctx.shape, ctx.format = stride, x.shape, memory_format(x)
        # index = (top + i) W + left + j; the place is 3 i + j
        inside = index.sub_(_first_cells(y, x.shape[3], stride))
        place = inside.to(torch.uint8)
        for i in (1, 2):
            place.add_(inside >= i * x.shape[3], alpha=(3 - x.shape[3]) % 256)
        ctx.save_for_backward(place)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (place,), stride, width = ctx.saved_tensors, ctx.stride, ctx.shape[3]
        row = (place >= 3).to(torch.uint8) + (place >= 6).to(torch.uint8)
        index = (place + _first_cells(dy, width, stride)).add_(row, alpha=width - 3)
        like = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=ctx.format)
        options = [3, 3], [stride, stride], [1, 1], [1, 1], False
        dx: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(dy, like, *options, index)
        return dx, None


def _first_cells(y: Tensor, width: int, stride: int) -> Tensor:
    """Return `top * width + left` of the window of each cell of `y`: `h x w`."""
    top, left = (torch.arange(size, device=y.device) * stride - 1 for size in y.shape[2:])
    return top[:, None] * width + left
