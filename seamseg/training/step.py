"""One training step: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seamseg.models.network import Losses
from seamseg.ops.fused import autocast
from seamseg.structures import upload
from seamseg.training.ddp import ParallelModule
from seamseg.training.optim.ema import WeightAverage
from seamseg.training.optim.optimizer import StatisticsBackup, set_learning_rates, step_unless
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import TrainingBatch
from seamseg.utils.distributed import World, broadcast_tensors


class StepResult(NamedTuple):
    """The result of a step, on the device: reading it waits for the step.

    Attributes
    ----------
    losses : unweighted means by name, detached: over the batches of this process, or with `loss_average = step` over
        those of all processes
    total : the weighted loss that was minimised
    ids : images of the batches
    grad_norm : norm of the gradient over all parameters and processes, before clipping; float32 scalar
    skipped : whether the update was skipped, see :class:`Stepper`; bool scalar
    metrics : what is only reported, such as an accuracy: means over the batches of this process by name
    """

    losses: dict[str, Tensor]
    total: Tensor
    ids: list[str]
    grad_norm: Tensor
    skipped: Tensor
    metrics: Mapping[str, Tensor] = MappingProxyType({})


class Stepper:
    """Trains on the batches of a step.

    A step updates weights, momentum, moving average and running statistics; all of them, or none. None of them changes
    from the first step on whose loss or gradient is not finite in any process, or whose loss is over `loss_limit`: the
    host reads the losses only every few steps, then stops the training, and must find the weights from before that
    step. With fp16 a gradient that is not finite is an overflow, which is expected now and then: only that step is
    skipped, and the loss scale is lowered. All this is decided on the device; the host reads nothing.

    `module` maps a batch to :class:`seamseg.models.network.Losses`, and its `net` is the network. Construction is a
    collective call.
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
        by_step, ahead = self.options.loss_average == "step", list[Losses]()
        if by_step and len(batches) > 1:
            with autocast(precision, device):
                ahead = preview_losses(self.module, batches, device)
        average = LossAverage(len(batches), self.world if by_step else None, ahead)
        for number, batch in enumerate(batches, 1):
            with self.parallel.exchanging(number == len(batches)):
                with autocast(precision, device):
                    losses: Losses = self.parallel(batch)
                loss = self._weighted_sum(average.add(losses))
                self.backward(self.parallel.reaching_all(loss))
        self.parallel.fill_gradients(self.optimizer)
        means = average.means()
        total = self._weighted_sum(means)
        return StepResult(means, total, [i for b in batches for i in b.ids], *self.update(total), average.metrics())

    def _weighted_sum(self, losses: Mapping[str, Tensor]) -> Tensor:
        if (names := list(losses)) != self._weights[0]:
            numbers = torch.tensor([self.options.loss_weights[name] for name in names], dtype=torch.float32)
            self._weights = names, upload(numbers, self.world.device)
        return (torch.stack([loss.float() for loss in losses.values()]) * self._weights[1]).sum()

    def begin(self) -> None:
        """Reset the gradients. Call it before the first forward pass of a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._statistics.save()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled where the precision requires it."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights by the accumulated gradients; return `grad_norm` and `skipped` of :class:`StepResult`.

        `loss` is the weighted loss of the whole step, a detached scalar, which may differ between processes.
        """
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.world.device)
        overflow = ~torch.isfinite(norm)
        bad = ~torch.isfinite(loss) | (loss > (self.options.loss_limit or torch.inf))
        if self.world.is_distributed:
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

    def averaged(self) -> AbstractContextManager[None]:
        """Put the moving average of the weights, if there is one, into the network inside a `with` block."""
        return nullcontext() if self.ema is None else self.ema.swapped_in()

    def share_statistics(self) -> None:
        """Copy the running statistics of the main process to all others, which differ if they are not synchronised."""
        broadcast_tensors(self.world, self.net.buffers())
        if self.ema is not None:
            broadcast_tensors(self.world, self.ema.statistics)


class LossAverage:
    """Averages the losses of a step over its batches in this process, as the original does (`loss_average = process`).

    With 1 region in one process and 99 in another, the single region weighs as much as the 99. With a `world` the
    losses are averaged over all anchors, samples, mask pixels or images of a step (`loss_average = step`): a step of
    several processes, or of several batches, then equals the step of one process with one large batch. Several batches
    need the losses of each `ahead`: the gradient of the first depends on the counts of all.
    """

    def __init__(self, number: int, world: World | None = None, ahead: Sequence[Losses] = ()) -> None:
        self._number, self._world, self._ahead = number, world, ahead
        self._parts: list[Losses] = []
        self._whole: Losses | None = None

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """Add the losses of a batch; return those whose gradients are summed here and averaged over processes."""
        self._parts.append(Losses(*({name: x.detach() for name, x in of.items()} for of in losses)))
        if self._world is None:
            return {name: self._share(mean) for name, mean in losses.means.items()}
        if self._whole is None:
            self._whole = combine_losses(self._world, self._ahead or self._parts)
        factors = {name: self._world.size / count.clamp(min=1) for name, count in self._whole.counts.items()}
        counts = {name: losses.counts[name] * factor for name, factor in factors.items()}
        return {name: mean * counts[name].to(mean.dtype) for name, mean in losses.means.items()}

    def means(self) -> dict[str, Tensor]:
        """Return the losses of the batches by name, detached float32 scalars; collective with a world."""
        if self._world is None or self._whole is None:
            return self._of_batches([part.means for part in self._parts])
        # for a single batch, the means were exchanged together with the counts
        whole = combine_losses(self._world, self._parts) if self._ahead else self._whole
        return {name: mean.float() for name, mean in whole.means.items()}

    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics, means over the batches of this process."""
        return self._of_batches([part.metrics for part in self._parts])

    def _of_batches(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: reduce(torch.add, [self._share(part[name]).float() for part in parts]) for name in parts[0]}

    def _share(self, mean: Tensor) -> Tensor:
        # an operator fewer for each loss of a single batch
        return mean if self._number == 1 else mean / self._number


def combine_losses(world: World, parts: Sequence[Losses]) -> Losses:
    """Return means weighted by counts (float64), and summed counts, of the batches of all processes; collective."""
    names = list(parts[0].means)
    counts = torch.stack([torch.stack([part.counts[name] for name in names]) for part in parts])
    means = torch.stack([torch.stack([part.means[name].double() for name in names]) for part in parts])
    sums = torch.stack([counts.sum(0), (counts * means).sum(0)])
    if world.is_distributed:
        dist.all_reduce(sums)
    total, weighted = sums
    return Losses(dict(zip(names, weighted / total.clamp(min=1))), dict(zip(names, total)))


@torch.no_grad()
def preview_losses(module: nn.Module, batches: Sequence[TrainingBatch], device: torch.device) -> list[Losses]:
    """Compute losses before training on their batches, without side effects on buffers and random numbers.

    The numbers of regions and mask pixels that count depend on the proposals: it costs a forward pass of each batch.
    """
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return [functional_call(module, copies, (batch,)) for batch in batches]
