"""What the losses of a step are means over (`[optimizer] loss_average`).

process : each batch of each process has its own means, and the step takes the mean of those, as the original does. Of
          two processes with 1 and 99 regions, the one region weighs as much as the 99.
step : one mean over all anchors, samples, mask pixels or images of the step, whichever batch and process they are in.
       A step of several processes, or of several batches, is then the step of one process with one large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seamseg.models.criterion import Losses
from seamseg.utils.distributed import World


class LossAverage(Protocol):
    """Takes in the losses of the batches of a step, one after the other."""

    def share(self, losses: Losses) -> dict[str, Tensor]:
        """What the losses of a batch add to those of the step, times the number of processes.

        Gradients of it are summed over the batches of a process, and averaged over the processes.
        """

    def means(self) -> dict[str, Tensor]:
        """The losses of the step by name, detached float32 scalars, of the batches so far."""


class ProcessAverage:
    """Mean over batches; :meth:`means` are those of this process.

    Parameters
    ----------
    batches : of the step in this process
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._sums: dict[str, Tensor] = {}

    def share(self, losses: Losses) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        shares = {name: mean / self._batches for name, mean in losses.means.items()}
        for name, share in shares.items():
            part = share.detach().float()
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        return shares

    def means(self) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        return self._sums


class StepAverage:
    """Mean over all that the step looks at; :meth:`means` are the same numbers in all processes.

    Makes collective calls of a few numbers, which stay on the device.

    Parameters
    ----------
    world : the processes
    counted : the losses of all batches of this process, of which only the counts are used; needed if there are several,
        since the gradient of the first depends on what the others count
    """

    def __init__(self, world: World, counted: Sequence[Losses] = ()) -> None:
        self._world = world
        self._parts: list[Losses] = []
        self._counted = bool(counted)
        self._whole = joined(world, counted) if counted else None

    def share(self, losses: Losses) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        self._parts.append(Losses({name: mean.detach() for name, mean in losses.means.items()}, losses.counts))
        if self._whole is None:
            self._whole = joined(self._world, self._parts)
        factors = {name: self._world.size / count.clamp(min=1) for name, count in self._whole.counts.items()}
        return {
            name: mean * (losses.counts[name] * factors[name]).to(mean.dtype) for name, mean in losses.means.items()
        }

    def means(self) -> dict[str, Tensor]:
        """See :class:`LossAverage`."""
        # one batch: the exchange of its counts took the means along
        whole = joined(self._world, self._parts) if self._counted else self._whole
        return {} if whole is None else {name: mean.float() for name, mean in whole.means.items()}


def joined(world: World, parts: Sequence[Losses]) -> Losses:
    """The losses of several batches in all processes as one: means weighted by counts (float64), and summed counts.

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
def look_ahead(net: nn.Module, device: torch.device, losses: Callable[[], Iterable[Losses]]) -> list[Losses]:
    """The losses of batches that are going to be trained on, leaving no trace.

    Parameters
    ----------
    net : its buffers (running statistics) are put back
    device : its random numbers and the CPU's start again at the same place, so that training draws the same
    losses : computes them

    Notes
    -----
    Costs a forward pass without gradients a batch. How many regions and mask pixels count is known no earlier: it
    depends on the proposals.
    """
    with _put_back(net), torch.random.fork_rng([device] if device.type == "cuda" else []):
        return list(losses())


@contextmanager
def _put_back(net: nn.Module) -> Iterator[None]:
    """Give the buffers of a network back the values they have, at the end of a `with` block."""
    saved = [(buffer, buffer.clone()) for buffer in net.buffers()]
    try:
        yield
    finally:
        for buffer, value in saved:
            buffer.copy_(value)
