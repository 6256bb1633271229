"""Gradients of several processes, by DistributedDataParallel, and gradient accumulation with it."""

from __future__ import annotations

import inspect
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.utils.distributed import World, new_group
from seamseg.utils.errors import SeamsegError


class ParallelModule:
    """A module from a batch to its losses, whose gradients are the means over all processes.

    A process whose images have no regions runs the ROI head on zero rows (`seamseg.models.panoptic.PanopticNet`), so
    every process uses the same parameters in every step. `unused_parameters` selects how parameters that no loss
    depends on, as the stages of a backbone behind the last input of the pyramid, get a gradient of 0; the resulting
    weights are the same:

    fake : from :meth:`reaching_all`, which searches the graph of the first batch of a process
    find : from DistributedDataParallel, which searches the graph of each step

    Construction is a collective call.
    """

    def __init__(self, module: nn.Module, world: World, unused_parameters: str) -> None:
        self.module = module
        self._parallel: DistributedDataParallel | None = None
        self._fake = world.is_distributed and unused_parameters != "find"
        # parameters that the first batch did not use
        self._unused: list[nn.Parameter] | None = None
        if not world.is_distributed:
            return
        # Gradients get a separate group: synchronised ABN uses the world group during the backward pass, and the order
        # of the two exchanges must not matter. Buffers are made equal after each epoch, not each step (Trainer.train).
        names = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        # they differ in sides of length 1 only: the gradient of a class token is a slice
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
        options |= {"find_unused_parameters": not self._fake, "process_group": new_group(range(world.size))}
        self._parallel = DistributedDataParallel(_OrParameters(module), **options)
        if self._fake:
            # Buckets are rebuilt after the first backward pass. With three or more processes, rounding depends on the
            # place of a gradient in its bucket: the first step of a resumed training would round differently.
            self._parallel().backward()
            module.zero_grad(set_to_none=True)

    def __call__(self, batch: Any) -> Any:
        """Compute the losses of a batch."""
        return self.module(batch) if self._parallel is None else self._parallel(batch)

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients in the backward pass of the `last` batch of a step; wrap both passes of each batch."""
        return nullcontext() if last or self._parallel is None else self._parallel.no_sync()

    def reaching_all(self, loss: Tensor) -> Tensor:
        """Return a loss whose backward pass reaches every parameter, with `fake`; otherwise the loss itself."""
        if not self._fake:
            return loss
        if self._unused is None:
            nodes: set[Any] = {loss.grad_fn} - {None}
            pending = list(nodes)
            while pending:
                following = {node for node, _ in pending.pop().next_functions} - nodes - {None}
                nodes |= following
                pending += following
            used = {node.variable for node in nodes if hasattr(node, "variable")}
            self._unused = [p for p in self.module.parameters() if p.requires_grad and p not in used]
        # sums of no elements
        return sum((p.reshape(-1)[:0].sum() for p in self._unused), loss)

    def fill_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the gradient of parameters that no process used in a step to 0; SeamsegError for such ones with `fake`.

        The optimizer skips parameters without a gradient, but the original applies momentum and weight decay to them.
        """
        missing = [p for group in optimizer.param_groups for p in group["params"] if p.grad is None]
        if missing and self._fake:
            name = next((name for name, p in self.module.named_parameters() if p is missing[0]), "a parameter")
            raise SeamsegError(
                f"{name}: has a gradient in the first step but not in this one; several processes then need "
                f"`overrides=general.unused_parameters=find`"
            )
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)


class _OrParameters(nn.Module):
    """Maps a batch to its losses by a module, and no batch to the sum of all parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any = None) -> Any:
        if batch is None:
            return torch.stack([p.sum() for p in self.module.parameters() if p.requires_grad]).sum()
        return self.module(batch)
