"""What the losses of a step are averaged over (`[optimizer] loss_average`).

process : each batch of each process has its own means, and the step uses the mean of those, as the original does. With
          1 region in one process and 99 in another, the single region weighs as much as the 99.
step : one mean over all anchors, samples, mask pixels or images of the step, across batches and processes. A step of
       several processes, or of several batches, then equals the step of one process with one large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seamseg.models.network import Losses
from seamseg.utils.distributed import World


class LossAverage(Protocol):
    """Averages the losses of the batches of a step, added one by one."""

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """Add the losses of a batch and return its contribution to those of the step, times the number of processes.

        Gradients of it are summed over the batches of a process, and averaged over the processes.
        """

    def means(self) -> dict[str, Tensor]:
        """Return the losses of the step by name, detached float32 scalars, over the batches added so far."""


class ProcessAverage:
    """Mean over batches; :meth:`means` are those of this process.

    Parameters
    ----------
    batches : number of batches of the step in this process
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._sums: dict[str, Tensor] = {}

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        contribution = {name: mean / self._batches for name, mean in losses.means.items()}
        for name, value in contribution.items():
            part = value.detach().float()
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        return contribution

    def means(self) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        return self._sums


class StepAverage:
    """Mean over the whole step; :meth:`means` are the same numbers in all processes.

    Makes collective calls of a few numbers, which stay on the device.

    Parameters
    ----------
    world : the processes
    preview : the losses of all batches of this process, of which only the counts are used; needed for several batches,
        since the gradient of the first depends on the counts of the others
    """

    def __init__(self, world: World, preview: Sequence[Losses] = ()) -> None:
        self._world = world
        self._parts: list[Losses] = []
        self._has_preview = bool(preview)
        self._whole = combine_losses(world, preview) if preview else None

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        self._parts.append(Losses({name: mean.detach() for name, mean in losses.means.items()}, losses.counts))
        if self._whole is None:
            self._whole = combine_losses(self._world, self._parts)
        factors = {name: self._world.size / count.clamp(min=1) for name, count in self._whole.counts.items()}
        return {
            name: mean * (losses.counts[name] * factors[name]).to(mean.dtype) for name, mean in losses.means.items()
        }

    def means(self) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        # for a single batch, the means were exchanged together with the counts
        whole = combine_losses(self._world, self._parts) if self._has_preview else self._whole
        return {} if whole is None else {name: mean.float() for name, mean in whole.means.items()}


def combine_losses(world: World, parts: Sequence[Losses]) -> Losses:
    """Combine the losses of several batches in all processes: means weighted by counts (float64), and summed counts.

    A collective call of all processes, each with at least one part.
    """
    names = list(parts[0].means)
    counts = torch.stack([torch.stack([part.counts[name] for name in names]) for part in parts])
    means = torch.stack([torch.stack([part.means[name].double() for name in names]) for part in parts])
    sums = torch.stack([counts.sum(0), (counts * means).sum(0)])
    if world.is_distributed:
        dist.all_reduce(sums)
    total, weighted = sums
    return Losses(dict(zip(names, weighted / total.clamp(min=1))), dict(zip(names, total)))


@torch.no_grad()
def preview_losses(net: nn.Module, device: torch.device, losses: Callable[[], Iterable[Losses]]) -> list[Losses]:
    """Compute the losses of batches before training on them, without side effects.

    Parameters
    ----------
    net : its buffers (running statistics) are restored
    device : its RNG state and the CPU's are restored, so that training uses the same random numbers
    losses : computes them

    Notes
    -----
    Costs one forward pass without gradients per batch. The numbers of regions and mask pixels that count depend on the
    proposals, so they are not known earlier.
    """
    with buffers_restored(net), torch.random.fork_rng([device] if device.type == "cuda" else []):
        return list(losses())


@contextmanager
def buffers_restored(net: nn.Module) -> Iterator[None]:
    """Restore the buffers of a network, also those that its code replaces, at the end of a `with` block."""
    saved = [(m._buffers, name, b, b.clone()) for m in net.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, value in saved:
                buffers[name] = buffer.copy_(value)
