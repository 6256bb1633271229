"""One step of training: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.engine.distributed import World
from seamseg.engine.train.averaging import LossAverage, ProcessAverage, StepAverage, look_ahead
from seamseg.engine.train.optimizer import set_learning_rates
from seamseg.engine.train.parallel import complete_gradients, gradients_stay
from seamseg.engine.train.precision import autocast
from seamseg.models.criterion import Losses
from seamseg.structures import Batch


class StepResult(NamedTuple):
    """What a step leaves to look at, on the device: reading it waits for the step.

    losses : means by name, not weighted; detached: over the batches of this process, or with `loss_average = step` over
        those of all processes
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
        average = self._average(batches)
        for number, batch in enumerate(batches):
            with gradients_stay(self.module, number + 1 == len(batches)):
                shares = average.share(self._losses(batch))
                weighted_sum(shares, self.config.optimizer.loss_weights).backward()
        complete_gradients(self.optimizer)
        self.optimizer.step()
        means = average.means()
        total = weighted_sum(means, self.config.optimizer.loss_weights)
        return StepResult(means, total, [i for batch in batches for i in batch.ids])

    def _average(self, batches: Sequence[Batch]) -> LossAverage:
        if self.config.optimizer.loss_average == "process":
            return ProcessAverage(len(batches))
        if len(batches) == 1:
            return StepAverage(self.world)
        # not through DistributedDataParallel, which would get ready for a backward pass
        bare = self.module.module if isinstance(self.module, DistributedDataParallel) else self.module
        counted = look_ahead(bare, self.world.device, lambda: [self._losses(batch, bare) for batch in batches])
        return StepAverage(self.world, counted)

    def _losses(self, batch: Batch, module: nn.Module | None = None) -> Losses:
        with autocast(self.config.general.precision, self.world.device):
            return (module or self.module)(batch.to(self.world.device, non_blocking=True))


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """The loss that is minimised, of losses in the order of `[optimizer] loss_weights`."""
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values())]).sum()
