"""The part of the network that does the same whatever is on the images: what a compiler or a CUDA graph can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Dense(NamedTuple):
    """What body, RPN head and semantic head make of a padded batch.

    levels `N x C x h x w` from fine to coarse, obj_logits `N x A`, bbx_logits `N x A x 4`, shapes: `(height, width)` of
    the cells of each level that has anchors, semantic_logits `N x classes x h x w` or None without a semantic head.
    """

    levels: list[Tensor]
    obj_logits: Tensor
    bbx_logits: Tensor
    shapes: list[tuple[int, int]]
    semantic_logits: Tensor | None


RunDense = Callable[[Tensor], Dense]
"""From a padded batch `N x 3 x H x W`; the tensors of the result are the caller's own."""


class DensePart(nn.Module):
    """Body, RPN head and semantic head of a network as one module.

    Parameters
    ----------
    body, rpn_head, sem_head : of the network; no semantic head for other tasks
    rpn_levels : (first, number) of the levels that have anchors
    """

    def __init__(
        self, body: nn.Module, rpn_head: nn.Module, sem_head: nn.Module | None, rpn_levels: tuple[int, int]
    ) -> None:
        super().__init__()
        self.body = body
        self.rpn_head = rpn_head
        self.sem_head = sem_head
        self.rpn_levels = rpn_levels

    def forward(self, padded: Tensor) -> Dense:
        """From a padded batch `N x 3 x H x W`."""
        levels = self.body(padded)
        first, number = self.rpn_levels
        obj_logits, bbx_logits, shapes = self.rpn_head(levels[first : first + number])
        semantic = None if self.sem_head is None else self.sem_head(levels)
        return Dense(levels, obj_logits, bbx_logits, shapes, semantic)


def let_sizes_vary(maps: list[Tensor]) -> None:
    """Have `torch.compile` treat height and width of these maps as dynamic, except sides of 1 pixel."""
    for x in maps:
        for dimension in (2, 3):
            if x.shape[dimension] > 1:
                torch._dynamo.maybe_mark_dynamic(x, dimension)
