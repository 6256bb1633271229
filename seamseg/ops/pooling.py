"""Large stride-1 average pooling in few passes over the map (docs/contract.md, section 3 "Semantic head")."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._library import define, describe, differentiate
from .reference.pooling import box_filter_pool as box_filter_pool_plain
from .reference.pooling import box_filter_pool_backward as box_filter_pool_backward_plain
from .reference.pooling import memory_format


def box_filter_pool(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Apply average pooling of stride 1, replicate-padded back to the size of its input.

    The window is clipped to the map; `(k - 1) // 2` rows (columns) are padded before, the rest of the `k - 1` after.
    The cost hardly grows with the window: one pass over the map. Every window is a sum of its own pixels only, so that
    large values elsewhere cause no rounding error, as they would in a running sum.

    Parameters
    ----------
    x : `N x C x H x W`, floating; half precision is summed in float32
    window : (height, width) of the window

    Returns
    -------
    `N x C x H x W`, in the memory format of `x`
    """
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point() or 0 in x.shape[2:]:
        raise ValueError(f"box_filter_pool: x must be floating N x C x H x W with pixels, got {describe(x)}")
    if min(window) < 1:
        raise ValueError(f"box_filter_pool: window must be positive, got {tuple(window)}")
    return _box_filter_pool(x, window[0], window[1])


def _fake(x: Tensor, height: int, width: int) -> Tensor:
    return torch.empty_like(x, memory_format=memory_format(x))


_box_filter_pool = define("box_filter_pool(Tensor x, int height, int width) -> Tensor", box_filter_pool_plain, _fake)
_box_filter_pool_backward = define(
    "box_filter_pool_backward(Tensor dy, int height, int width) -> Tensor", box_filter_pool_backward_plain, _fake
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.window = inputs[1:]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
    return _box_filter_pool_backward(dy, *ctx.window), None, None


def _backward_backward(ctx: Any, ddx: Tensor) -> tuple[Tensor, None, None]:
    # the map is linear: the gradient of its adjoint is the map itself
    return _box_filter_pool(ddx, *ctx.window), None, None


differentiate("box_filter_pool", _backward, _setup_context)
differentiate("box_filter_pool_backward", _backward_backward, _setup_context)
