"""One training step: batches to losses, losses to gradients of all processes, gradients to weights."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seamseg.models.network import Losses
from seamseg.ops.fused import autocast
from seamseg.structures import upload
from seamseg.training.optim.optimizer import StatisticsBackup, WeightAverage, set_learning_rates, step_unless
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import TrainingBatch
from seamseg.utils.distributed import World, broadcast_tensors, new_group
from seamseg.utils.errors import SeamsegError


class StepResult(NamedTuple):
    """The result of a step, on the device: reading it waits for the step.

    `losses` are unweighted means by name, over the batches of this process, or with `loss_average = step` over those of
    all; `total` is the weighted loss that was minimised; `ids` name the images. `grad_norm` is the gradient norm
    before clipping, `skipped` whether the update was skipped, see :class:`Stepper`; `metrics` are only reported.
    """

    losses: dict[str, Tensor]
    total: Tensor
    ids: list[str]
    grad_norm: Tensor
    skipped: Tensor
    metrics: Mapping[str, Tensor] = MappingProxyType({})


class ParallelModule:
    """A module from a batch to its losses, whose gradients are the means over all processes.

    A process whose images have no regions runs the ROI head on zero rows, so every process uses the same parameters in
    every step. Parameters that no loss depends on, as the last stages of some backbones, get a gradient of 0: with
    `unused_parameters` `fake` by :meth:`reaching_all`, which searches the graph of the first batch of a process, with
    `find` by DistributedDataParallel, which searches that of each step. Construction is a collective call.
    """

    def __init__(self, module: nn.Module, world: World, unused_parameters: str) -> None:
        self.module = module
        self._parallel: DistributedDataParallel | None = None
        self._fake = world.size > 1 and unused_parameters != "find"
        self._unused: list[nn.Parameter] | None = None  # by the first batch
        if world.size == 1:
            return
        # Gradients get a separate group: synchronised ABN uses the world group during the backward pass, and the order
        # of the two exchanges must not matter. Buffers are made equal after each epoch, not each step (Trainer.train).
        names = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        # the strides differ in sides of length 1 only: the gradient of a class token is a slice
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
        """Set missing gradients to 0: the original applies momentum and decay to these parameters, too."""
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


class Stepper:
    """Trains on the batches of a step.

    A step updates weights, momentum, moving average and running statistics; all of them, or none. Once a loss or
    gradient was not finite, or a loss above `loss_limit`, in any process, no step changes them: the host, which reads
    the losses only every few steps, must find the weights from before. With fp16 only the step with
    an overflow is skipped, and the loss scale lowered. `module` maps a batch to :class:`Losses`, and its `net` is the
    network. Construction is a collective call.
    """

    def __init__(
        self, options: TrainerOptions, module: nn.Module, optimizer: torch.optim.Optimizer, world: World
    ) -> None:
        self.options = options
        self.module = module
        self.parallel = ParallelModule(module, world, options.unused_parameters)
        self.net = module.get_submodule("net")
        self.optimizer = optimizer
        self.world = world
        # bf16 has the range of float32 and needs no scaling
        self.scaler = torch.amp.GradScaler(world.device.type) if options.precision == "fp16" else None
        self.ema = WeightAverage(self.net, options.ema, options.key("optimizer.ema")) if options.ema > 0 else None
        self._statistics = StatisticsBackup(self.net)
        self._weights: tuple[list[str], Tensor] = [], torch.zeros(0)
        self._stopped = torch.zeros((), dtype=torch.bool, device=world.device)

    def __call__(self, batches: Sequence[TrainingBatch], rates: list[float]) -> StepResult:
        """Train on the batches of one step, on the device, with a learning rate for each parameter group."""
        set_learning_rates(self.optimizer, rates)
        self.begin()
        device, precision = self.world.device, self.options.precision
        by_step = self.options.loss_average == "step"
        ahead: list[Losses] = []
        if by_step and len(batches) > 1:
            with autocast(precision, device):
                ahead = preview_losses(self.module, batches, device)
        average = LossAverage(len(batches), self.world if by_step else None, ahead)
        for number, batch in enumerate(batches, 1):
            with self.parallel.exchanging(number == len(batches)):
                with autocast(precision, device):
                    losses: Losses = self.parallel(batch)
                average.add(losses)
                loss = self._weighted_sum(average.to_minimise(losses))
                self.backward(self.parallel.reaching_all(loss))
        self.parallel.fill_gradients(self.optimizer)
        means = average.means()
        total = self._weighted_sum(means)
        norm, skipped = self.update(total)
        ids = [name for batch in batches for name in batch.ids]
        return StepResult(means, total, ids, norm, skipped, average.metrics())

    def _weighted_sum(self, losses: Mapping[str, Tensor]) -> Tensor:
        if (names := list(losses)) != self._weights[0]:
            numbers = torch.tensor([self.options.loss_weights[name] for name in names], dtype=torch.float32)
            self._weights = names, upload(numbers, self.world.device)
        return (torch.stack([loss.float() for loss in losses.values()]) * self._weights[1]).sum()

    def begin(self) -> None:
        """Begin a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._statistics.save()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights by the gradients, unless these or the loss forbid it; return `grad_norm` and `skipped`."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.world.device)
        overflow = ~torch.isfinite(norm)
        bad = ~torch.isfinite(loss) | (loss > (self.options.loss_limit or torch.inf))
        if self.world.size > 1:
            # all processes share the gradients, but not the losses
            number = bad.float()
            dist.all_reduce(number, dist.ReduceOp.MAX)
            bad = number > 0
        self._stopped |= bad if self.scaler is not None else bad | overflow
        skipped = self._stopped | overflow
        if self.options.clip_norm > 0:
            clip_grads_with_norm_(parameters, self.options.clip_norm, norm)
        step_unless(self.optimizer, skipped)
        if self.scaler is not None:
            self.scaler.update()
        self._statistics.restore(skipped)
        if self.ema is not None:
            self.ema.update(skipped)
        return norm, skipped

    def share_statistics(self) -> None:
        """Copy the running statistics of the main process to all others, which differ if they are not synchronised."""
        broadcast_tensors(self.world, self.net.buffers())
        if self.ema is not None:
            broadcast_tensors(self.world, self.ema.statistics)


class LossAverage:
    """Averages the losses of a step over its batches in this process, as the original does (`loss_average = process`).

    With 1 region in one process and 99 in another, the single region weighs as much as the 99. With a `world` the
    losses are averaged over all samples of a step (`loss_average = step`), as in one process with one large batch.
    Several batches need the losses of each `ahead`: the gradient of the first depends on the counts of all.
    """

    def __init__(self, number: int, world: World | None = None, ahead: Sequence[Losses] = ()) -> None:
        self._number, self._world, self._ahead = number, world, ahead
        self._parts: list[Losses] = []
        self._whole: Losses | None = None

    def add(self, losses: Losses) -> None:
        """Add the losses of a batch."""
        self._parts.append(Losses(*({name: x.detach() for name, x in of.items()} for of in losses)))

    def to_minimise(self, losses: Losses) -> dict[str, Tensor]:
        """Return the losses of a batch as the sum over batches, and mean over processes, minimises them."""
        if self._world is None:
            # a single batch saves an operation
            return losses.means if self._number == 1 else {k: mean / self._number for k, mean in losses.means.items()}
        if self._whole is None:
            self._whole = combine_losses(self._world, self._ahead or self._parts)
        factors = {name: self._world.size / count.clamp(min=1) for name, count in self._whole.counts.items()}
        weights = {name: losses.counts[name] * factor for name, factor in factors.items()}
        return {name: mean * weights[name].to(mean.dtype) for name, mean in losses.means.items()}

    def means(self) -> dict[str, Tensor]:
        """Return the losses of the batches by name, float32 scalars; collective with a world."""
        if self._world is None or self._whole is None:
            return self._of_batches([part.means for part in self._parts])
        # for a single batch, the means were exchanged together with the counts
        whole = combine_losses(self._world, self._parts) if self._ahead else self._whole
        return {name: mean.float() for name, mean in whole.means.items()}

    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics, means over the batches of this process."""
        return self._of_batches([part.metrics for part in self._parts])

    def _of_batches(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        if self._number == 1:
            return {name: x.float() for name, x in parts[0].items()}
        return {name: reduce(torch.add, [(part[name] / self._number).float() for part in parts]) for name in parts[0]}


def combine_losses(world: World, parts: Sequence[Losses]) -> Losses:
    """Return means weighted by counts (float64), and summed counts, of the batches of all processes; collective."""
    names = list(parts[0].means)
    counts = torch.stack([torch.stack([part.counts[name] for name in names]) for part in parts])
    means = torch.stack([torch.stack([part.means[name].double() for name in names]) for part in parts])
    sums = torch.stack([counts.sum(0), (counts * means).sum(0)])
    if world.size > 1:
        dist.all_reduce(sums)
    total, weighted = sums
    return Losses(dict(zip(names, weighted / total.clamp(min=1))), dict(zip(names, total)))


@torch.no_grad()
def preview_losses(module: nn.Module, batches: Sequence[TrainingBatch], device: torch.device) -> list[Losses]:
    """Compute losses before training on their batches, without side effects on buffers and random numbers."""
    # the numbers of regions and mask pixels with a loss depend on the proposals: it costs a forward pass of each batch
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return [functional_call(module, copies, (batch,)) for batch in batches]
