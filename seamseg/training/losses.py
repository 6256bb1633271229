"""The losses of a training: read from the device now and then, averaged, and checked: an invalid one stops it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seamseg.training.options import TrainerOptions
from seamseg.training.step import StepResult
from seamseg.utils.distributed import World, gather_objects, max_over_processes
from seamseg.utils.errors import SeamsegError


@dataclass
class AverageMeter:
    """An average in which each value counts `momentum` times less than the next.

    `momentum = 1` is the plain mean.
    """

    momentum: float = 1.0
    last: float = 0.0
    sum: float = 0.0
    count: float = 0.0

    def update(self, value: float) -> None:
        """Add a value."""
        self.last = value
        self.sum = self.momentum * self.sum + value
        self.count = self.momentum * self.count + 1.0

    @property
    def mean(self) -> float:
        """The average so far, 0 if there is none."""
        return self.sum / self.count if self.count else 0.0

    def reset(self) -> None:
        """Remove all values."""
        self.last = self.sum = self.count = 0.0

    def numbers(self) -> dict[str, float]:
        """Return the state as plain numbers."""
        return {"last": self.last, "sum": self.sum, "count": self.count}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors, the format of a snapshot."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self.numbers().items()}


class Averages:
    """A meter for each name."""

    def __init__(self) -> None:
        self.meters: dict[str, AverageMeter] = {}

    def update(self, values: Mapping[str, float]) -> None:
        """Add a value for each name."""
        for name, value in values.items():
            self.meters.setdefault(name, AverageMeter()).update(value)

    def means(self) -> dict[str, float]:
        """Return the means of all names with values."""
        return {name: meter.mean for name, meter in self.meters.items() if meter.count}

    def pop_means(self) -> dict[str, float]:
        """Return the means of all names with values, and reset all meters."""
        means = self.means()
        for meter in self.meters.values():
            meter.reset()
        return means

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Return plain numbers by name."""
        return {name: meter.numbers() for name, meter in self.meters.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.meters = {name: AverageMeter(**values) for name, values in state.items()}


class LossMeans(NamedTuple):
    """Averages over the steps since the last report.

    losses : mean losses by name; `loss` is the weighted sum, further ones are only reported
    gradients : `grad_norm`, if a step had a finite one
    skipped : number of skipped updates
    """

    losses: dict[str, float]
    gradients: dict[str, float]
    skipped: int


@dataclass(frozen=True)
class LossReport:
    """A step with an invalid loss or gradient.

    Attributes
    ----------
    step, ids : the step, and the images of its batch
    problem : what is invalid
    of_loss : whether a loss of this process is invalid, rather than the gradient, which all processes share
    """

    step: int
    ids: list[str]
    problem: str
    of_loss: bool


@dataclass
class _UnreadStep:
    step: int
    ids: list[str]
    values: Tensor


MAX_OVERFLOWS = 64
"""Consecutive steps that may overflow: each halves the loss scale, which begins at 2 ** 16."""


@dataclass
class LossLog:
    """Collects the losses of the steps and finds the first invalid one.

    Reading a loss waits for the device, so the losses stay there until one copy transfers those of `interval` steps.

    Parameters
    ----------
    interval : steps between two copies; 1 on the CPU, where reading is free
    limit : a total loss above it is invalid; 0 for no limit
    overflows : gradients that are not finite are expected (float16): their steps are skipped and counted
    limit_key : name of the key of the limit, for the report

    Attributes
    ----------
    recent : averages since they were last reset
    epoch : averages of the epoch
    gradients : `grad_norm` since it was last reset, without the steps whose gradient is not finite
    skipped : number of skipped updates since it was last reset
    last_update : number of the newest step that has updated the weights: its losses and gradient were finite
    """

    interval: int = 1
    limit: float = 0.0
    overflows: bool = False
    limit_key: str = "general.loss_limit"
    recent: Averages = field(default_factory=Averages)
    epoch: Averages = field(default_factory=Averages)
    gradients: Averages = field(default_factory=Averages)
    skipped: int = 0
    last_update: int = 0
    _in_a_row: int = 0
    _names: list[str] = field(default_factory=list)
    _unread: list[_UnreadStep] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether a :meth:`flush` is due."""
        return len(self._unread) >= self.interval

    def begin_epoch(self) -> None:
        """Reset all averages, but not the count of consecutive overflows. Call :meth:`flush` before."""
        self.recent, self.epoch, self.gradients, self.skipped = Averages(), Averages(), Averages(), 0

    def add(self, step: int, result: StepResult) -> None:
        """Store the result of a step."""
        values = {**result.losses, "loss": result.total, **result.metrics}
        self._names = list(values)
        scalars = (*values.values(), result.grad_norm, result.skipped)
        self._unread.append(_UnreadStep(step, result.ids, torch.stack([x.detach().float() for x in scalars])))

    def pop_means(self) -> LossMeans:
        """Return `recent`, `gradients` and `skipped`, and reset them."""
        skipped, self.skipped = self.skipped, 0
        return LossMeans(self.recent.pop_means(), self.gradients.pop_means(), skipped)

    def flush(self) -> LossReport | None:
        """Update the averages with the stored steps before the first invalid one, and return a report of that one."""
        if not self._unread:
            return None
        unread, self._unread = self._unread, []
        for step, row in zip(unread, torch.stack([step.values for step in unread]).double().cpu().tolist()):
            *numbers, norm, skipped = row
            values = dict(zip(self._names, numbers))
            report = self._check(step, values, norm)
            if report is not None:
                return report
            self.recent.update(values)
            self.epoch.update(values)
            if math.isfinite(norm):
                self.gradients.update({"grad_norm": norm})
            if skipped:
                self.skipped += 1
            else:
                self.last_update = step.step
        return None

    def _check(self, step: _UnreadStep, values: dict[str, float], norm: float) -> LossReport | None:
        problem = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
        if not problem and 0 < self.limit < values["loss"]:
            problem = f"loss = {values['loss']:g} is above {self.limit_key} = {self.limit:g}"
        if problem:
            return LossReport(step.step, step.ids, problem, True)
        if math.isfinite(norm):
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if not self.overflows:
            return LossReport(step.step, step.ids, f"gradient norm = {norm}", False)
        if self._in_a_row >= MAX_OVERFLOWS:
            problem = f"gradient norm = {norm} for {MAX_OVERFLOWS} steps in a row: fp16 overflows at every loss scale"
            return LossReport(step.step, step.ids, problem, False)
        return None

    def state_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return all averages; call :meth:`flush` before."""
        parts = {"recent": self.recent, "epoch": self.epoch, "gradients": self.gradients}
        return {
            **{name: part.state_dict() for name, part in parts.items()},
            "skipped": {"steps": {"count": self.skipped, "in_a_row": self._in_a_row}},
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.recent.load_state_dict(state["recent"])
        self.epoch.load_state_dict(state["epoch"])
        self.gradients.load_state_dict(state["gradients"])
        steps = state["skipped"]["steps"]
        self.skipped, self._in_a_row = int(steps["count"]), int(steps["in_a_row"])


class Diverged(SeamsegError):
    """A loss or gradient is not finite, or a loss is over its limit.

    Attributes
    ----------
    step, problem : which and what, in a few words
    """

    def __init__(self, message: str, step: int, problem: str) -> None:
        super().__init__(message)
        self.step = step
        self.problem = problem


class LossCheck:
    """Stops the training in all processes when a loss or gradient of one is invalid.

    Parameters
    ----------
    options : options of the trainer
    world : the processes; all of them must add the same steps
    """

    def __init__(self, options: TrainerOptions, world: World) -> None:
        self.world = world
        self._advice = options.smaller_rate
        # on the CPU reading the losses is free
        read_interval = 1 if world.device.type == "cpu" else options.log_interval
        self._log = LossLog(
            read_interval, options.loss_limit, options.precision == "fp16", options.key("general.loss_limit")
        )

    @property
    def last_update(self) -> int:
        """Number of the newest step known to have updated the weights, the same in all processes."""
        return self._log.last_update

    @property
    def meters(self) -> dict[str, AverageMeter]:
        """Averages of the losses over the epoch so far, by name."""
        return self._log.epoch.meters

    @property
    def full(self) -> bool:
        """Whether a :meth:`check` is due, the same in all processes."""
        return self._log.full

    def begin_epoch(self) -> None:
        """Reset the averages."""
        self._log.begin_epoch()

    def add(self, step: int, result: StepResult) -> None:
        """Store the result of a step; the host does not wait for it."""
        self._log.add(step, result)

    def check(self) -> None:
        """Read and check the losses of all steps so far; a collective call.

        Raises
        ------
        Diverged
            if a loss of any process, or the gradient, is not finite, or a loss is over `general.loss_limit`
        """
        report = self._log.flush()
        if self._in_any_process(report):
            self._stop(gather_objects(self.world, report))

    def failed(self) -> None:
        """After an exception in a step of this process, check whether its losses explain it; errors as :meth:`check`.

        No collective call, since the other processes may be at any point.
        """
        report = self._log.flush()
        if report is not None:
            self._stop([report])

    def pop_means(self) -> LossMeans:
        """Return the averages of this process over the checked steps since the last call."""
        return self._log.pop_means()

    def state_dict(self) -> dict[str, Any]:
        """Return averages of the losses up to the last step, as plain numbers; a collective call.

        Errors as :meth:`check`.
        """
        self.check()
        return self._log.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self._log.load_state_dict(state)

    def _in_any_process(self, report: LossReport | None) -> bool:
        if not self.world.is_distributed:
            return report is not None
        return max_over_processes(self.world, {"found": float(report is not None)})["found"] > 0

    def _stop(self, reports: Sequence[LossReport | None]) -> None:
        """Raise an error with the reports of all processes.

        Parameters
        ----------
        reports : report of each process by rank, None for no problem
        """
        step = min(r.step for r in reports if r is not None)
        first = {rank: r for rank, r in enumerate(reports) if r is not None and r.step == step}
        if any(r.of_loss for r in first.values()):
            # these also invalidate the gradient of the other processes
            first = {rank: r for rank, r in first.items() if r.of_loss}
        shared = len(reports) > 1
        problems = "; ".join(
            f"{r.problem} ({f'process {rank}, ' if shared else ''}images {', '.join(r.ids)})"
            for rank, r in first.items()
        )
        message = f"training stopped at step {step}: {problems}; {self._advice}, or check these images"
        raise Diverged(message, step, problems)
