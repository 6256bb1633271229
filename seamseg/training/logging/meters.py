"""Running averages of training quantities, and the losses of the steps since the host last read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seamseg.training.step import StepResult


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

    def pop_means(self) -> dict[str, float]:
        """Return the means of all names with values, and reset all meters."""
        means = {name: meter.mean for name, meter in self.meters.items() if meter.count}
        for meter in self.meters.values():
            meter.reset()
        return means

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Return plain numbers by name."""
        return {name: meter.numbers() for name, meter in self.meters.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.meters = {name: AverageMeter(**values) for name, values in state.items()}


@dataclass(frozen=True)
class LossReport:
    """A step with an invalid loss or gradient.

    Attributes
    ----------
    step, ids : the step, and the images of its batch
    problem : what is invalid
    losses : of the step by name
    of_loss : whether a loss of this process is invalid, rather than the gradient, which all processes share
    """

    step: int
    ids: list[str]
    problem: str
    losses: dict[str, float]
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
    skipped : number of skipped updates, since it was last set to 0
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
            return LossReport(step.step, step.ids, problem, values, True)
        if math.isfinite(norm):
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if not self.overflows:
            return LossReport(step.step, step.ids, f"gradient norm = {norm}", values, False)
        if self._in_a_row >= MAX_OVERFLOWS:
            problem = f"gradient norm = {norm} for {MAX_OVERFLOWS} steps in a row: fp16 overflows at every loss scale"
            return LossReport(step.step, step.ids, problem, values, False)
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
        # early releases did not save the number of consecutive overflows
        self.skipped, self._in_a_row = int(steps["count"]), int(steps.get("in_a_row", 0))
