"""Running averages of training quantities, and the store of losses that waits for the device as rarely as it can."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class AverageMeter:
    """An average in which each earlier value counts `momentum` times less than the next.

    `momentum = 1` is the plain mean.
    """

    momentum: float = 1.0
    last: float = 0.0
    sum: float = 0.0
    count: float = 0.0

    def update(self, value: float) -> None:
        """Take one value in."""
        self.last = value
        self.sum = self.momentum * self.sum + value
        self.count = self.momentum * self.count + 1.0

    @property
    def mean(self) -> float:
        """The average so far, 0 if there is none."""
        return self.sum / self.count if self.count else 0.0

    def reset(self) -> None:
        """Forget everything."""
        self.last = self.sum = self.count = 0.0

    def numbers(self) -> dict[str, float]:
        """Everything it has taken in."""
        return {"last": self.last, "sum": self.sum, "count": self.count}

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors, as a snapshot keeps them."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self.numbers().items()}


class Averages:
    """A meter for each name."""

    def __init__(self) -> None:
        self.meters: dict[str, AverageMeter] = {}

    def update(self, values: Mapping[str, float]) -> None:
        """Take one value of each name in."""
        for name, value in values.items():
            self.meters.setdefault(name, AverageMeter()).update(value)

    def take(self) -> dict[str, float]:
        """The means of what had values, after which all begins anew."""
        means = {name: meter.mean for name, meter in self.meters.items() if meter.count}
        for meter in self.meters.values():
            meter.reset()
        return means

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Plain numbers by name."""
        return {name: meter.numbers() for name, meter in self.meters.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.meters = {name: AverageMeter(**values) for name, values in state.items()}


@dataclass(frozen=True)
class Finding:
    """A step with which something is wrong.

    Attributes
    ----------
    step, ids : the step, and the images of its batch
    words : what is wrong
    losses : of the step by name, as they are
    of_loss : whether a loss of this process is wrong, rather than the gradient, which all processes share
    """

    step: int
    ids: list[str]
    words: str
    losses: dict[str, float]
    of_loss: bool


@dataclass
class _Pending:
    step: int
    ids: list[str]
    values: Tensor


MAX_OVERFLOWS = 64
"""Steps in a row that may overflow: each halves the scale of the loss, which begins at 2 ** 16."""


@dataclass
class LossLog:
    """Collects the losses of the steps and finds the first step that went wrong.

    Reading a loss waits for the device. So the losses stay there, and one copy brings those of `interval` steps.

    Parameters
    ----------
    interval : steps between two copies; 1 on the CPU, where reading costs nothing
    limit : a total loss above it is wrong; 0 for no limit
    overflows : gradients that are not finite are part of the game (float16): their steps are skipped and counted

    Attributes
    ----------
    recent : averages since they were last taken
    epoch : averages of the epoch
    gradients : `grad_norm` since it was last taken, without the steps whose gradient is not finite
    skipped : steps that left the weights as they were, since it was last set to 0
    """

    interval: int = 1
    limit: float = 0.0
    overflows: bool = False
    recent: Averages = field(default_factory=Averages)
    epoch: Averages = field(default_factory=Averages)
    gradients: Averages = field(default_factory=Averages)
    skipped: int = 0
    _in_a_row: int = 0
    _names: list[str] = field(default_factory=list)
    _pending: list[_Pending] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether it is time to :meth:`flush`"""
        return len(self._pending) >= self.interval

    def begin_epoch(self) -> None:
        """Start all averages anew; a row of overflows may reach over several epochs. Call :meth:`flush` before."""
        self.recent, self.epoch, self.gradients, self.skipped = Averages(), Averages(), Averages(), 0

    def add(
        self,
        step: int,
        ids: list[str],
        losses: Mapping[str, Tensor],
        total: Tensor,
        grad_norm: Tensor,
        skipped: Tensor,
    ) -> None:
        """Keep the losses of a step, its gradient's norm, and whether it was skipped; `ids` are its images."""
        self._names = [*losses, "loss"]
        scalars = (*losses.values(), total, grad_norm, skipped)
        self._pending.append(_Pending(step, ids, torch.stack([x.detach().float() for x in scalars])))

    def flush(self) -> Finding | None:
        """Bring the averages up to date: up to, without, the first step that went wrong, which is returned."""
        if not self._pending:
            return None
        pending, self._pending = self._pending, []
        for p, row in zip(pending, torch.stack([p.values for p in pending]).double().cpu().tolist()):
            *numbers, norm, skipped = row
            values = dict(zip(self._names, numbers))
            finding = self._judge(p, values, norm)
            if finding is not None:
                return finding
            self.recent.update(values)
            self.epoch.update(values)
            if math.isfinite(norm):
                self.gradients.update({"grad_norm": norm})
            self.skipped += bool(skipped)
        return None

    def _judge(self, p: _Pending, values: dict[str, float], norm: float) -> Finding | None:
        words = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
        if not words and 0 < self.limit < values["loss"]:
            words = f"loss = {values['loss']:g} is above general.loss_limit = {self.limit:g}"
        if words:
            return Finding(p.step, p.ids, words, values, True)
        if math.isfinite(norm):
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if not self.overflows:
            return Finding(p.step, p.ids, f"the gradient's norm = {norm}", values, False)
        if self._in_a_row >= MAX_OVERFLOWS:
            words = f"the gradient's norm = {norm} for {MAX_OVERFLOWS} steps in a row, fp16 holds it at no scale"
            return Finding(p.step, p.ids, words, values, False)
        return None

    def state_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """All averages; call :meth:`flush` before."""
        parts = {"recent": self.recent, "epoch": self.epoch, "gradients": self.gradients}
        return {
            **{name: part.state_dict() for name, part in parts.items()},
            "skipped": {"steps": {"count": self.skipped, "in_a_row": self._in_a_row}},
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.recent.load_state_dict(state["recent"])
        self.epoch.load_state_dict(state["epoch"])
        self.gradients.load_state_dict(state["gradients"])
        steps = state["skipped"]["steps"]
        # of a release that did not count them: the row begins anew
        self.skipped, self._in_a_row = int(steps["count"]), int(steps.get("in_a_row", 0))
