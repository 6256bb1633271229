"""DistributedDataParallel around the network, and gradient accumulation with it.

A process whose images have no regions runs the ROI head on zero rows (`seamseg.models.panoptic.PanopticNet`), so every
process uses every parameter in every step. `[general] unused_parameters` selects the mode of DistributedDataParallel;
the resulting weights are the same:

find : search the graph of each step for unused parameters
fake : search the graph of the first step only, and use it for all steps (`static_graph`)
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.config import Config
from seamseg.utils.distributed import World
from seamseg.utils.process_groups import new_group


def wrap_distributed(module: nn.Module, config: Config, world: World) -> nn.Module:
    """Wrap a module in DistributedDataParallel; return the module itself for a single process.

    A collective call: each process passes the module on its own device.
    """
    if not world.is_distributed:
        return module
    fake = config.general.unused_parameters == "fake"
    # Gradients get a separate group: synchronised ABN uses the world group during the backward pass, and the order of
    # the two exchanges must not matter. Buffers are made equal after each epoch instead of each step (Trainer.train).
    names = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
    options |= {"static_graph": True} if fake else {"find_unused_parameters": True}
    return _AccumulatingDDP(module, process_group=new_group(range(world.size)), **options)


def no_gradient_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Defer the gradient exchange to the `last` batch of a step; wrap the forward and backward pass of each batch."""
    return nullcontext() if last or not isinstance(module, _AccumulatingDDP) else module.defer_sync()


class _AccumulatingDDP(DistributedDataParallel):
    """DistributedDataParallel whose very first batch can defer its gradient exchange."""

    _graph_recorded = False

    def defer_sync(self) -> AbstractContextManager[Any]:
        """Exchange the gradients of a batch together with those of a later one."""
        # a static graph is recorded in the first exchange, which cannot be skipped; exchanging the partial sum as well
        # gives the same result
        if self.static_graph and not self._graph_recorded:
            self._graph_recorded = True
            return nullcontext()
        return self.no_sync()


def fill_missing_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Set the gradient of parameters that no process used in a step to 0.

    The optimizer skips parameters without a gradient, but the original applies momentum and weight decay to them.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
