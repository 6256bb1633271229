"""The running statistics of norm layers, put back where a step is left out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from seamseg.training.optim.optimizer import NORM_LAYERS


def running_statistics(net: nn.Module) -> Iterator[Tensor]:
    """Means, variances and counters of all norm layers of a network, which a forward pass updates in place."""
    for layer in net.modules():
        if isinstance(layer, NORM_LAYERS):
            yield from (buffer for buffer in layer.buffers(recurse=False))


class StatisticsGuard:
    """Keeps the running statistics of before a step, and puts them back if the step is left out.

    A forward pass whose numbers overflow writes them into the statistics before anybody knows.

    Parameters
    ----------
    net : on its device; its buffers must stay the same tensors
    """

    def __init__(self, net: nn.Module) -> None:
        self._buffers: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(net):
            self._buffers.setdefault(buffer.dtype, []).append(buffer)
        self._kept: dict[torch.dtype, Tensor] = {}

    def keep(self) -> None:
        """Note the statistics as they are."""
        # one vector for all: hundreds of short tensors would each cost a launch
        self._kept = {dtype: _joined(buffers) for dtype, buffers in self._buffers.items()}

    @torch.no_grad()
    def restore(self, skipped: Tensor) -> None:
        """Put back what was kept where `skipped`, a bool scalar on the device that the host does not read."""
        for dtype, buffers in self._buffers.items():
            chosen = torch.where(skipped, self._kept[dtype], _joined(buffers))
            parts = chosen.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(buffer) for part, buffer in zip(parts, buffers)])
        self._kept = {}


def _joined(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
