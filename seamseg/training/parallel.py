"""One network in several processes: how they exchange gradients.

A process whose images have nothing for the ROI head runs it on zero rows (`seamseg.models.panoptic.PanopticNet`). So
every process uses every parameter in every step. `[general] unused_parameters` chooses how DistributedDataParallel is
set up; the weights are the same:

find : it walks the graph of each step for parameters that take no part
fake : it walks the graph of the first step only, and takes it for that of all (`static_graph`)
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.models.criterion import TrainingModule
from seamseg.utils.distributed import World
from seamseg.utils.process_groups import new_group


def in_parallel(module: TrainingModule, config: Config, world: World) -> nn.Module:
    """The module as the processes train it together; the module itself where there is one process.

    All processes must call this together, on their own device.
    """
    if not world.is_distributed:
        return module
    fake = config.general.unused_parameters == "fake"
    # Gradients get a group of their own: synchronised ABN uses that of the world during the backward pass, and the
    # order of the two exchanges must not matter. Buffers are not averaged each step but made equal after each epoch
    # (Trainer.train).
    names = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
    options |= {"static_graph": True} if fake else {"find_unused_parameters": True}
    return _Parallel(module, process_group=new_group(range(world.size)), **options)


def gradients_stay(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Around forward and backward pass of a batch of a step: processes exchange gradients once, with its `last` one."""
    return nullcontext() if last or not isinstance(module, _Parallel) else module.gradients_stay()


class _Parallel(DistributedDataParallel):
    """DistributedDataParallel that can collect gradients from its first batch on."""

    _knows_graph = False

    def gradients_stay(self) -> AbstractContextManager[Any]:
        """Leave the gradients of a batch to be exchanged with those of a later one."""
        # a static graph is learnt from the first exchange, which cannot be left out: exchanging the sum so far, too,
        # comes to the same
        if self.static_graph and not self._knows_graph:
            self._knows_graph = True
            return nullcontext()
        return self.no_sync()


def complete_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give parameters that no process used in a step a gradient of 0.

    They would keep their place otherwise, while the momentum and decay of the others go on. The original went on.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
