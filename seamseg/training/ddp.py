"""DistributedDataParallel around the network, and gradient accumulation with it.

A process whose images have no regions runs the ROI head on zero rows (`seamseg.models.panoptic.PanopticNet`), so every
process uses the same parameters in every step. `[general] unused_parameters` selects how parameters that no loss
depends on, as the stages of a backbone behind the last input of the pyramid, get a gradient of 0; the resulting weights
are the same:

fake : from :func:`with_all_parameters`, which searches the graph of the first batch of a process
find : from DistributedDataParallel, which searches the graph of each step
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch._dynamo.config
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.models.network import Network
from seamseg.utils.compiler import compiler_problem
from seamseg.utils.distributed import World, gather_objects
from seamseg.utils.errors import SeamsegError
from seamseg.utils.process_groups import new_group


def wrap_distributed(module: nn.Module, world: World, unused_parameters: str) -> nn.Module:
    """Wrap a module in DistributedDataParallel; return the module itself for a single process. A collective call."""
    if not world.is_distributed:
        return module
    # Gradients get a separate group: synchronised ABN uses the world group during the backward pass, and the order of
    # the two exchanges must not matter. Buffers are made equal after each epoch instead of each step (Trainer.train).
    names = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    # they differ in sides of length 1 only: the gradient of a class token is a slice
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    find = unused_parameters == "find"
    options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True, "find_unused_parameters": find}
    parallel = DistributedDataParallel(
        _Parallel(module, not find), process_group=new_group(range(world.size)), **options
    )
    if not find:
        # Buckets are rebuilt after the first backward pass. With three or more processes, rounding depends on the place
        # of a gradient in its bucket: the first step of a resumed training would round differently.
        parallel().backward()
        module.zero_grad(set_to_none=True)
    return parallel


class _Parallel(nn.Module):
    """The module in DistributedDataParallel: maps a batch to its losses, and no batch to the sum of all parameters."""

    def __init__(self, module: nn.Module, fake: bool) -> None:
        super().__init__()
        self.module = module
        self.fake = fake
        # parameters that the first batch did not use
        self.unused: list[nn.Parameter] | None = None

    def forward(self, batch: Any = None) -> Any:
        if batch is None:
            return torch.stack([p.sum() for p in self.module.parameters() if p.requires_grad]).sum()
        return self.module(batch)


def _parallel(module: nn.Module) -> _Parallel | None:
    """Return what a module from :func:`wrap_distributed` wraps; None for a single process."""
    return cast(_Parallel, module.module) if isinstance(module, DistributedDataParallel) else None


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that :func:`wrap_distributed` was given."""
    parallel = _parallel(module)
    return module if parallel is None else parallel.module


def no_gradient_sync(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Defer the gradient exchange to the `last` batch of a step; wrap the forward and backward pass of each batch."""
    return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()


def with_all_parameters(module: nn.Module, loss: Tensor) -> Tensor:
    """Return a loss whose backward pass reaches every parameter, with `fake`; otherwise the loss itself."""
    parallel = _parallel(module)
    if parallel is None or not parallel.fake:
        return loss
    if parallel.unused is None:
        used = _used_by(loss)
        parallel.unused = [p for p in module.parameters() if p.requires_grad and p not in used]
    return _ZeroGradients.apply(loss, *parallel.unused) if parallel.unused else loss


def fill_missing_gradients(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Set the gradient of parameters that no process used in a step to 0; SeamsegError for such ones with `fake`.

    The optimizer skips parameters without a gradient, but the original applies momentum and weight decay to them.
    """
    parallel = _parallel(module)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                if parallel is not None and parallel.fake:
                    named = parallel.module.named_parameters()
                    name = next((name for name, p in named if p is parameter), "a parameter")
                    raise SeamsegError(
                        f"{name}: has a gradient in the first step but not in this one; several processes then need "
                        f"`overrides=general.unused_parameters=find`"
                    )
                parameter.grad = torch.zeros_like(parameter)


class _ZeroGradients(torch.autograd.Function):
    """The identity of a tensor; gradients of the parameters are 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, *(torch.zeros_like(parameter) for parameter in ctx.saved_tensors)


def _used_by(loss: Tensor) -> set[Tensor]:
    """Return the leaves of the graph of a loss."""
    leaves, nodes = set[Tensor](), {loss.grad_fn}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        following = {other for other, _ in node.next_functions} - nodes
        nodes |= following
        pending += following
    return leaves


def compile_network(net: Network, world: World, warn: Callable[[str], None], backend: str = "inductor") -> bool:
    """Compile body, pyramid and semantic head of a network in place; return whether it is compiled.

    The compiler runs at the first step, and again at the first validation. If it does not work in a process, none
    compiles, and `warn` is called.
    """
    reasons = [reason for reason in gather_objects(world, compiler_problem(world.device, backend)) if reason]
    if reasons:
        warn(
            "[general] compile: the network runs uncompiled, torch.compile does not work "
            f"{'here' if len(reasons) == world.size else 'in every process'}: {reasons[0]}"
        )
        return False
    # DistributedDataParallel would split the graph at its bucket boundaries, which the graphs of in-place ABN do not
    # allow. The gradients of the body come last in any case.
    torch._dynamo.config.optimize_ddp = False
    net.compile_parts(backend)
    return True
