"""CUDA graphs without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


class CopyingRecorder:
    """A recorder on the CPU: the tensors at fixed places are overwritten by each replay, whose operators no mode sees.

    As the graphs share their memory, a replay of the first of two functions, the forward pass, spoils all other places.
    `records` counts the recorded functions, `replays` the replays.
    """

    def __init__(self) -> None:
        self.records = self.replays = 0
        self.latest: object = None
        self._places: list[Tensor] = []

    def warm_up(self, function: Callable[[], object]) -> None:
        """Call a function."""
        function()

    def record(self, function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]]:
        """Call a function, unlike a GPU, and return copies of its results, and what computes them again there."""
        is_forward = self.records % 2 == 0
        self.records += 1
        places = [tensor.clone() for tensor in function()]
        self._places += places

        def replay() -> None:
            self.replays += 1
            with torch.no_grad(), _disable_current_modes():
                for place in self._places if is_forward else []:
                    place.fill_(torch.nan)
                for place, tensor in zip(places, function(), strict=True):
                    place.copy_(tensor)

        return places, replay
