"""One training step: batches to losses, losses to gradients, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seamseg.models.network import Losses
from seamseg.ops.fused import compute_dtype
from seamseg.training.ddp import fill_missing_gradients, no_gradient_sync, unwrapped, with_all_parameters
from seamseg.training.optim.ema import WeightAverage
from seamseg.training.optim.optimizer import running_statistics, set_learning_rates, step_unless
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import TrainingBatch
from seamseg.utils.distributed import World, broadcast_tensors
from seamseg.utils.errors import InputError


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

    `module` maps a batch to :class:`seamseg.models.network.Losses`, and its `net` is the network; it may be wrapped by
    :func:`seamseg.training.ddp.wrap_distributed`.
    """

    def __init__(
        self, options: TrainerOptions, module: nn.Module, optimizer: torch.optim.Optimizer, world: World
    ) -> None:
        self.options = options
        self.module = module
        self.net = unwrapped(module).get_submodule("net")
        self.optimizer = optimizer
        self.world = world
        # bf16 has the range of float32 and needs no scaling
        self.scaler = torch.amp.GradScaler(world.device.type) if options.precision == "fp16" else None
        self.ema = WeightAverage(self.net, options.ema, options.key("optimizer.ema")) if options.ema > 0 else None
        self._statistics = _StatisticsBackup(self.net)
        self._stopped = torch.zeros((), dtype=torch.bool, device=world.device)

    def __call__(self, batches: Sequence[TrainingBatch], rates: list[float]) -> StepResult:
        """Train on the batches of one step, on the device, with a learning rate for each parameter group."""
        set_learning_rates(self.optimizer, rates)
        self.begin()
        weights = self.options.loss_weights
        average = self._loss_average(batches)
        metrics = ProcessAverage(len(batches))
        for number, batch in enumerate(batches):
            with no_gradient_sync(self.module, number + 1 == len(batches)):
                with self._autocast():
                    losses: Losses = self.module(batch)
                loss = weighted_sum(average.add(losses), weights)
                self.backward(with_all_parameters(self.module, loss))
            metrics.add(Losses(dict(losses.metrics), {}))
        fill_missing_gradients(self.module, self.optimizer)
        means = average.means()
        total = weighted_sum(means, weights)
        grad_norm, skipped = self.update(total)
        ids = [name for batch in batches for name in batch.ids]
        return StepResult(means, total, ids, grad_norm, skipped, metrics.means())

    def _autocast(self) -> torch.autocast:
        return autocast(self.options.precision, self.world.device)

    def _loss_average(self, batches: Sequence[TrainingBatch]) -> ProcessAverage | StepAverage:
        if self.options.loss_average == "process":
            return ProcessAverage(len(batches))
        if len(batches) == 1:
            return StepAverage(self.world)
        with self._autocast():
            # not through DistributedDataParallel, which would prepare for a backward pass
            return StepAverage(self.world, preview_losses(unwrapped(self.module), batches, self.world.device))

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

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides weights and optimizer: "scaler" and "ema", as far as they are in use."""
        state: dict[str, Any] = {}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Restore a saved state of the file `source`; an average that it lacks begins with the current weights.

        InputError if it is damaged or belongs to another network.
        """
        if self.scaler is not None and "scaler" in state:
            try:
                self.scaler.load_state_dict(dict(state["scaler"]))
            except (KeyError, TypeError, ValueError, RuntimeError):
                raise InputError(f"{source}: the state of its loss scale is damaged") from None
        if self.ema is not None:
            if "ema" in state:
                self.ema.load_state_dict(state["ema"], source)
            else:
                self.ema.reset()


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context for `[general] precision`: fp32, bf16, fp16, or auto (bf16 where it is fast).

    Weights, statistics and losses stay float32.
    """
    dtype = compute_dtype(precision, device)
    mixed = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype if mixed else torch.bfloat16, enabled=mixed)


def weighted_sum(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of losses, a float32 scalar; InputError if a loss has no weight, or a weight no loss."""
    if losses.keys() != weights.keys():
        unweighted = ", ".join(name for name in losses if name not in weights)
        problem = f"{unweighted} has no weight: " if unweighted else ""
        raise InputError(
            f"{problem}[optimizer] loss_weights has "
            f"{len(weights)} values for {len(losses)} losses ({', '.join(losses)})"
        )
    return torch.stack([weights[name] * loss.float() for name, loss in losses.items()]).sum()


class _StatisticsBackup:
    """The running statistics from before a step: a forward pass that overflows makes them invalid."""

    def __init__(self, net: nn.Module) -> None:
        self._buffers: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(net):
            self._buffers.setdefault(buffer.dtype, []).append(buffer)
        self._saved: dict[torch.dtype, Tensor] = {}

    def save(self) -> None:
        # one vector for all: hundreds of short tensors would each cost a kernel launch
        self._saved = {dtype: _flat(buffers) for dtype, buffers in self._buffers.items()}

    @torch.no_grad()
    def restore(self, skipped: Tensor) -> None:
        """Restore the copy where `skipped`, a scalar that the host does not read."""
        for dtype, buffers in self._buffers.items():
            chosen = torch.where(skipped, self._saved[dtype], _flat(buffers))
            parts = torch.split(chosen, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(buffer) for part, buffer in zip(parts, buffers)])
        self._saved = {}


def _flat(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers])


class ProcessAverage:
    """Averages losses over the batches of a step in this process, as the original does (`loss_average = process`).

    With 1 region in one process and 99 in another, the single region weighs as much as the 99.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._sums: dict[str, Tensor] = {}

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """Add the losses of a batch; return those whose gradients are summed here and averaged over processes."""
        contribution = {name: mean / self._batches for name, mean in losses.means.items()}
        for name, value in contribution.items():
            part = value.detach().float()
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        return contribution

    def means(self) -> dict[str, Tensor]:
        """Return the losses of the batches so far by name, detached float32 scalars."""
        return self._sums


class StepAverage:
    """Averages losses over all anchors, samples, mask pixels or images of a step (`loss_average = step`).

    A step of several processes, or of several batches, then equals the step of one process with one large batch.
    Several batches need a `preview` of the losses of each: the gradient of the first depends on the counts of all.
    """

    def __init__(self, world: World, preview: Sequence[Losses] = ()) -> None:
        self._world = world
        self._parts: list[Losses] = []
        self._has_preview = bool(preview)
        self._whole = combine_losses(world, preview) if preview else None

    def add(self, losses: Losses) -> dict[str, Tensor]:
        """See :class:`ProcessAverage`."""
        self._parts.append(Losses({name: mean.detach() for name, mean in losses.means.items()}, losses.counts))
        if self._whole is None:
            self._whole = combine_losses(self._world, self._parts)
        factors = {name: self._world.size / count.clamp(min=1) for name, count in self._whole.counts.items()}
        return {
            name: mean * (losses.counts[name] * factors[name]).to(mean.dtype) for name, mean in losses.means.items()
        }

    def means(self) -> dict[str, Tensor]:
        """See :class:`ProcessAverage`."""
        # for a single batch, the means were exchanged together with the counts
        whole = combine_losses(self._world, self._parts) if self._has_preview else self._whole
        return {} if whole is None else {name: mean.float() for name, mean in whole.means.items()}


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
