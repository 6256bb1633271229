"""One step of training: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.engine.distributed import World
from seamseg.engine.train.optimizer import set_learning_rates
from seamseg.engine.train.precision import autocast
from seamseg.models.criterion import Losses
from seamseg.structures import Batch


class StepResult(NamedTuple):
    """What a step leaves to look at, on the device: reading it waits for the step.

    losses : means by name over the batches of this process, not weighted; detached
    total : the weighted loss that was minimised
    ids : images of the batches
    """

    losses: dict[str, Tensor]
    total: Tensor
    ids: list[str]


class Stepper:
    """Trains on the batches of a step.

    Parameters
    ----------
    config : precision, loss weights
    module : :class:`seamseg.models.training.TrainingModule` or a DistributedDataParallel around it
    optimizer : of the network's parameters
    world : the processes
    """

    def __init__(self, config: Config, module: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
        self.config = config
        self.module = module
        self.optimizer = optimizer
        self.world = world

    def __call__(self, batches: Sequence[Batch], rates: list[float]) -> StepResult:
        """Train on the batches of one step, with a learning rate for each group of parameters."""
        set_learning_rates(self.optimizer, rates)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        totals = []
        for number, batch in enumerate(batches):
            with self._synchronised(number + 1 == len(batches)):
                losses = self._losses(batch)
                total = weighted_sum(losses.means, self.config.optimizer.loss_weights) / len(batches)
                total.backward()
            totals.append(total.detach())
            for name, mean in losses.means.items():
                part = mean.detach().float() / len(batches)
                sums[name] = sums[name] + part if name in sums else part
        self.optimizer.step()
        return StepResult(sums, torch.stack(totals).sum(), [i for batch in batches for i in batch.ids])

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot keeps of it besides the optimizer's state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Go on from what :meth:`state_dict` gave; `source` is the file it comes from, for messages."""

    def _losses(self, batch: Batch) -> Losses:
        with autocast(self.config.general.precision, self.world.device):
            return self.module(batch.to(self.world.device, non_blocking=True))

    def _synchronised(self, last: bool) -> AbstractContextManager:
        """Processes exchange the gradients once a step, with its last batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """The loss that is minimised, of losses in the order of `[optimizer] loss_weights`."""
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values())]).sum()
