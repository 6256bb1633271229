"""One training step: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.models.criterion import Losses
from seamseg.ops.fused import bf16_is_fast
from seamseg.structures import Batch
from seamseg.training.averaging import LossAverage, ProcessAverage, StepAverage, preview_losses
from seamseg.training.ddp import fill_missing_gradients, no_gradient_sync, with_all_parameters
from seamseg.training.optim.optimizer import set_learning_rates
from seamseg.training.prefetch import prepare_batch
from seamseg.training.update import Update
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError


class StepResult(NamedTuple):
    """The result of a step, on the device: reading it waits for the step.

    losses : unweighted means by name, detached: over the batches of this process, or with `loss_average = step` over
        those of all processes
    total : the weighted loss that was minimised
    ids : images of the batches
    grad_norm : norm of the gradient over all parameters and processes, before clipping; float32 scalar
    skipped : whether the update was skipped, see :class:`seamseg.training.update.Update`; bool scalar
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
    module : :class:`seamseg.models.criterion.TrainingModule`, or DistributedDataParallel around it
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
        """Train on the batches of one step, with a learning rate for each parameter group."""
        set_learning_rates(self.optimizer, rates)
        self.update.begin()
        average = self._average(batches)
        for number, batch in enumerate(batches):
            with no_gradient_sync(self.module, number + 1 == len(batches)):
                contribution = average.add(self._losses(batch))
                loss = weighted_sum(contribution, self.config.optimizer.loss_weights)
                self.update.backward(with_all_parameters(self.module, loss))
        fill_missing_gradients(self.module, self.optimizer)
        means = average.means()
        total = weighted_sum(means, self.config.optimizer.loss_weights)
        grad_norm, skipped = self.update.finish(total)
        return StepResult(means, total, [i for batch in batches for i in batch.ids], grad_norm, skipped)

    def averaged(self) -> AbstractContextManager[None]:
        """Put the moving average of the weights, if there is one, into the network inside a `with` block."""
        return self.update.averaged()

    def share_statistics(self) -> None:
        """Copy the running statistics of the main process to all others; a collective call."""
        self.update.share_statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides weights and optimizer: "scaler" and "ema", as far as they are in use."""
        return self.update.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Restore a saved state and ignore other entries; errors name the file `source`."""
        self.update.load_state_dict(state, source)

    def _average(self, batches: Sequence[Batch]) -> LossAverage:
        if self.config.optimizer.loss_average == "process":
            return ProcessAverage(len(batches))
        if len(batches) == 1:
            return StepAverage(self.world)
        # not through DistributedDataParallel, which would prepare for a backward pass
        bare = _unwrapped(self.module)
        preview = preview_losses(bare, self.world.device, lambda: [self._losses(batch, bare) for batch in batches])
        return StepAverage(self.world, preview)

    def _losses(self, batch: Batch, module: nn.Module | None = None) -> Losses:
        with autocast(self.config.general.precision, self.world.device):
            on_device = batch.to(self.world.device, non_blocking=True)
            return (module or self.module)(prepare_batch(on_device, self.config.dataloader))


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `[general] precision` selects for the forward and backward pass on a device."""
    if precision == "auto":
        precision = "bf16" if bf16_is_fast(device) else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context for `[general] precision`: fp32, bf16, fp16, or auto (bf16 where it is fast).

    Weights, statistics and losses stay float32.
    """
    dtype = compute_dtype(precision, device)
    mixed = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype if mixed else torch.bfloat16, enabled=mixed)


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """Return the weighted sum of losses given in the order of `[optimizer] loss_weights`.

    Raises
    ------
    InputError
        if a loss has no weight, or a weight no loss
    """
    if len(losses) != len(weights):
        unweighted = f"{', '.join(list(losses)[len(weights) :])} has no weight: " if len(losses) > len(weights) else ""
        raise InputError(
            f"{unweighted}[optimizer] loss_weights has {len(weights)} values for {len(losses)} losses "
            f"({', '.join(losses)})"
        )
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values(), strict=True)]).sum()


def _network(module: nn.Module) -> nn.Module:
    net = _unwrapped(module).net
    assert isinstance(net, nn.Module)
    return net


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module
