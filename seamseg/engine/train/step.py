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
from seamseg.engine.train.update import Update
from seamseg.models.criterion import Losses
from seamseg.structures import Batch


class StepResult(NamedTuple):
    """What a step leaves to look at, on the device: reading it waits for the step.

    losses : means by name over the batches of this process, not weighted; detached
    total : the weighted loss that was minimised
    ids : images of the batches
    grad_norm : norm of the gradient over all parameters and processes, not clipped; float32 scalar
    skipped : whether the update was left out, see :class:`seamseg.engine.train.update.Update`; bool scalar
    """

    losses: dict[str, Tensor]
    total: Tensor
    ids: list[str]
    grad_norm: Tensor
    skipped: Tensor


class Stepper:
    """Trains on the batches of a step.

    Parameters
    ----------
    config : precision, loss weights, clipping, moving average
    module : :class:`seamseg.models.training.TrainingModule` or a DistributedDataParallel around it
    optimizer : of the network's parameters
    world : the processes
    """

    def __init__(self, config: Config, module: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
        self.config = config
        self.module = module
        self.optimizer = optimizer
        self.world = world
        self.update = Update(config, _network(module), optimizer, world)

    def __call__(self, batches: Sequence[Batch], rates: list[float]) -> StepResult:
        """Train on the batches of one step, with a learning rate for each group of parameters."""
        set_learning_rates(self.optimizer, rates)
        self.update.begin()
        sums: dict[str, Tensor] = {}
        totals = []
        for number, batch in enumerate(batches):
            with self._synchronised(number + 1 == len(batches)):
                losses = self._losses(batch)
                total = weighted_sum(losses.means, self.config.optimizer.loss_weights) / len(batches)
                self.update.backward(total)
            totals.append(total.detach())
            for name, mean in losses.means.items():
                part = mean.detach().float() / len(batches)
                sums[name] = sums[name] + part if name in sums else part
        total = torch.stack(totals).sum()
        grad_norm, skipped = self.update.finish(total)
        return StepResult(sums, total, [i for batch in batches for i in batch.ids], grad_norm, skipped)

    def averaged(self) -> AbstractContextManager[None]:
        """The network holds the moving average of the weights, if there is one, inside a `with` block."""
        return self.update.averaged()

    def share_statistics(self) -> None:
        """Give all processes the main process' running statistics; all must call it."""
        self.update.share_statistics()

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot needs besides weights and optimizer: "scaler" and "ema", those that there are."""
        return self.update.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Continue from a saved state, other names in it do not matter; errors name the file `source`."""
        self.update.load_state_dict(state, source)

    def _losses(self, batch: Batch) -> Losses:
        with autocast(self.config.general.precision, self.world.device):
            return self.module(batch.to(self.world.device, non_blocking=True))

    def _synchronised(self, last: bool) -> AbstractContextManager:
        """Processes exchange the gradients once a step, with its last batch."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()


def _network(module: nn.Module) -> nn.Module:
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    assert isinstance(inner.net, nn.Module)
    return inner.net


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """The loss that is minimised, of losses in the order of `[optimizer] loss_weights`."""
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values())]).sum()
