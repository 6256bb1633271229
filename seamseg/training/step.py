"""One step of training: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.models.criterion import Losses
from seamseg.structures import Batch
from seamseg.training.averaging import LossAverage, ProcessAverage, StepAverage, look_ahead
from seamseg.training.device_transforms import prepare_batch
from seamseg.training.optim.optimizer import set_learning_rates
from seamseg.training.optim.precision import autocast
from seamseg.training.parallel import complete_gradients, gradients_stay
from seamseg.training.update import Update
from seamseg.utils.distributed import World


class StepResult(NamedTuple):
    """What a step leaves to look at, on the device: reading it waits for the step.

    losses : means by name, not weighted; detached: over the batches of this process, or with `loss_average = step` over
        those of all processes
    total : the weighted loss that was minimised
    ids : images of the batches
    grad_norm : norm of the gradient over all parameters and processes, not clipped; float32 scalar
    skipped : whether the update was left out, see :class:`seamseg.training.update.Update`; bool scalar
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
    module : :class:`seamseg.models.criterion.TrainingModule` or a DistributedDataParallel around it
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
        average = self._average(batches)
        for number, batch in enumerate(batches):
            with gradients_stay(self.module, number + 1 == len(batches)):
                shares = average.share(self._losses(batch))
                self.update.backward(weighted_sum(shares, self.config.optimizer.loss_weights))
        complete_gradients(self.optimizer)
        means = average.means()
        total = weighted_sum(means, self.config.optimizer.loss_weights)
        grad_norm, skipped = self.update.finish(total)
        return StepResult(means, total, [i for batch in batches for i in batch.ids], grad_norm, skipped)

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

    def _average(self, batches: Sequence[Batch]) -> LossAverage:
        if self.config.optimizer.loss_average == "process":
            return ProcessAverage(len(batches))
        if len(batches) == 1:
            return StepAverage(self.world)
        # not through DistributedDataParallel, which would get ready for a backward pass
        bare = _bare(self.module)
        counted = look_ahead(bare, self.world.device, lambda: [self._losses(batch, bare) for batch in batches])
        return StepAverage(self.world, counted)

    def _losses(self, batch: Batch, module: nn.Module | None = None) -> Losses:
        with autocast(self.config.general.precision, self.world.device):
            on_device = batch.to(self.world.device, non_blocking=True)
            return (module or self.module)(prepare_batch(on_device, self.config.dataloader))


def _network(module: nn.Module) -> nn.Module:
    net = _bare(module).net
    assert isinstance(net, nn.Module)
    return net


def _bare(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """The loss that is minimised, of losses in the order of `[optimizer] loss_weights`."""
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values())]).sum()
