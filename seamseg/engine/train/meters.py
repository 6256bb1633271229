"""Running averages of training quantities, and the store of losses that waits for the device as rarely as it can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seamseg.errors import SeamsegError


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
        """The means, after which all begins anew."""
        means = {name: meter.mean for name, meter in self.meters.items()}
        for meter in self.meters.values():
            meter.reset()
        return means

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Plain numbers by name."""
        return {name: meter.numbers() for name, meter in self.meters.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.meters = {name: AverageMeter(**values) for name, values in state.items()}


@dataclass
class _Pending:
    step: int
    ids: list[str]
    values: Tensor


@dataclass
class LossLog:
    """Collects the losses of the steps and stops the training when one is not finite.

    Reading a loss waits for the device. So the losses stay there, and one copy brings those of `interval` steps.

    Parameters
    ----------
    interval : steps between two copies; 1 on the CPU, where reading costs nothing

    Attributes
    ----------
    recent : averages since they were last taken
    epoch : averages of the epoch
    """

    interval: int = 1
    recent: Averages = field(default_factory=Averages)
    epoch: Averages = field(default_factory=Averages)
    _names: list[str] = field(default_factory=list)
    _pending: list[_Pending] = field(default_factory=list)

    def add(self, step: int, ids: list[str], losses: Mapping[str, Tensor], total: Tensor) -> None:
        """Keep the losses of a step; `ids` are the images of its batch.

        Raises
        ------
        SeamsegError
            if a loss of this step, or of an earlier one not looked at yet, is not finite
        """
        self._names = [*losses, "loss"]
        values = torch.stack([loss.detach().float() for loss in (*losses.values(), total)])
        self._pending.append(_Pending(step, ids, values))
        if len(self._pending) >= self.interval:
            self.flush()

    def flush(self) -> None:
        """Bring the averages up to date; errors as :meth:`add`."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rows = torch.stack([p.values for p in pending]).double().cpu()
        finite = torch.isfinite(rows)
        for p, row, ok in zip(pending, rows.tolist(), finite.tolist()):
            if not all(ok):
                bad = ", ".join(f"{n} = {v}" for n, v, good in zip(self._names, row, ok) if not good)
                raise SeamsegError(
                    f"training stopped at step {p.step}: {bad} (images {', '.join(p.ids)}); "
                    "lower optimizer.lr or lengthen scheduler.burn_in_steps, and look at these images"
                )
            values = dict(zip(self._names, row))
            self.recent.update(values)
            self.epoch.update(values)

    def state_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Both averages; call :meth:`flush` before."""
        return {"recent": self.recent.state_dict(), "epoch": self.epoch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.recent.load_state_dict(state["recent"])
        self.epoch.load_state_dict(state["epoch"])
