"""Large stride-1 average pooling in few passes, and small poolings that keep little for the backward pass.

The large one belongs to the semantic head (docs/contract.md, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops._library import define, describe, differentiate
from seamseg.ops.reference import pooling as plain
from seamseg.ops.reference.pooling import memory_format


def box_filter_pool(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Apply average pooling of stride 1, replicate-padded back to the size of its input.

    The window is clipped to the map; `(k - 1) // 2` rows (columns) are padded before, the rest of the `k - 1` after.
    The cost hardly grows with the window: one pass over the map. Every window is a sum of its own pixels only, so that
    large values elsewhere cause no rounding error, as they would in a running sum. Map `N x C x H x W` to the same
    shape and memory format; half precision is summed in float32. The window is (height, width).
    """
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point() or 0 in x.shape[2:]:
        raise ValueError(f"box_filter_pool: x must be floating N x C x H x W with pixels, got {describe(x)}")
    if min(window) < 1:
        raise ValueError(f"box_filter_pool: window must be positive, got {tuple(window)}")
    return _box_filter_pool(x, window[0], window[1])


def _fake(x: Tensor, height: int, width: int) -> Tensor:
    return torch.empty_like(x, memory_format=memory_format(x))


_box_filter_pool = define("box_filter_pool", plain.box_filter_pool, _fake)
_box_filter_pool_backward = define("box_filter_pool_backward", plain.box_filter_pool_backward, _fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.window = inputs[1:]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
    return _box_filter_pool_backward(dy, *ctx.window), None, None


def _backward_backward(ctx: Any, ddx: Tensor) -> tuple[Tensor, None, None]:
    # the map is linear: the gradient of its adjoint is the map itself
    return _box_filter_pool(ddx, *ctx.window), None, None


differentiate("box_filter_pool", _backward, _setup_context)
differentiate("box_filter_pool_backward", _backward_backward, _setup_context)


class MaxPool2d(nn.MaxPool2d):
    """Max pooling that keeps one byte for each maximum for the backward pass: its place in the window.

    torch keeps the input and an int64 index. Values, gradients and constructor are the same; windows of more than 256
    cells are pooled by torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x H x W` to `N x C x h x w`."""
        window = [_pair(value) for value in (self.kernel_size, self.stride, self.padding, self.dilation)]
        (height, width), *_, dilation = window
        tracked = torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()
        small = x.dim() == 4 and height * width <= 256 and width <= x.shape[3]
        if not tracked or not small or dilation != [1, 1] or self.return_indices:
            y: Tensor = super().forward(x)
            return y
        y = _MaxPool.apply(x, *window[:3], self.ceil_mode)
        return y


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool
    ) -> Tensor:
        y, index = functional.max_pool2d_with_indices(x, kernel, stride, padding, ceil_mode=ceil_mode)
        ctx.options = kernel, stride, padding, [1, 1], ceil_mode
        ctx.shape, ctx.format = x.shape, memory_format(x)
        # index = (top + i) W + left + j; the place is i k + j
        height, width = kernel
        inside = index.sub_(_first_cells(y, x.shape[3], stride, padding))
        place = inside.to(torch.uint8)
        for i in range(1, height):
            place.add_(inside >= i * x.shape[3], alpha=(width - x.shape[3]) % 256)
        ctx.save_for_backward(place)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        (height, width), stride, padding, *_ = ctx.options
        row = sum((place >= i * width).to(torch.uint8) for i in range(1, height))
        index = place + _first_cells(dy, ctx.shape[3], stride, padding)
        if height > 1:
            index.add_(row, alpha=ctx.shape[3] - width)
        like = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=ctx.format)
        dx = torch.ops.aten.max_pool2d_with_indices_backward(dy, like, *ctx.options, index)
        return dx, None, None, None, None


def _first_cells(y: Tensor, width: int, stride: list[int], padding: list[int]) -> Tensor:
    """Return `top * width + left` of the window of each cell of `y`: `h x w`."""
    top, left = (
        torch.arange(size, device=y.device) * step - pad for size, step, pad in zip(y.shape[2:], stride, padding)
    )
    return top[:, None] * width + left
