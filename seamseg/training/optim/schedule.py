"""Learning-rate schedules as pure functions of the step and the epoch (docs/contract.md, section 4)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seamseg.utils.errors import InputError


def _linear(t: int, total: int, params: Mapping[str, Any]) -> float:
    return float(params["from"] + (params["to"] - params["from"]) * t / total)


def _step(t: int, total: int, params: Mapping[str, Any]) -> float:
    return float(params["gamma"] ** (t // params["step_size"]))


def _poly(t: int, total: int, params: Mapping[str, Any]) -> float:
    # past the end (a resumed run with fewer epochs) the base is negative
    return float(max(0.0, 1.0 - t / total) ** params["gamma"])


def _multistep(t: int, total: int, params: Mapping[str, Any]) -> float:
    return float(params["gamma"] ** bisect_right(sorted(params["milestones"]), t))


_CURVES: dict[str, tuple[Callable[[int, int, Mapping[str, Any]], float], tuple[str, ...]]] = {
    "linear": (_linear, ("from", "to")),
    "step": (_step, ("step_size", "gamma")),
    "poly": (_poly, ("gamma",)),
    "multistep": (_multistep, ("gamma", "milestones")),
}


class LRSchedule(ABC):
    """Learning rates of all parameter groups at a step, from their base rates.

    Parameters
    ----------
    base_lrs : base rate of each parameter group
    epochs : length of the training
    epoch_length : steps an epoch
    by_epoch : whether the rates depend on the epoch, in place of the step
    """

    def __init__(self, base_lrs: Sequence[float], epochs: int, epoch_length: int, by_epoch: bool) -> None:
        self.base_lrs = list(base_lrs)
        self.by_epoch = by_epoch
        self.total = epochs if by_epoch else epochs * max(1, epoch_length)

    @abstractmethod
    def factor(self, step: int, epoch: int) -> float:
        """Return the factor of the base rates.

        Parameters
        ----------
        step : number of the step, 1 for the first of the training
        epoch : epochs finished before this step, 0 for the first; used only with `by_epoch`
        """

    def get_lr(self, step: int, epoch: int) -> list[float]:
        """Return the learning rate of each parameter group; see :meth:`factor` for the arguments."""
        factor = self.factor(step, epoch)
        return [base * factor for base in self.base_lrs]


class CurveSchedule(LRSchedule):
    """The schedule of `[scheduler]`.

    The curve runs over `t`, the step (`update_mode="batch"`) or the epoch (`"epoch"`), out of `total`, the number of
    steps or epochs. While `step <= burn_in_steps` the rate rises linearly from `burn_in_start` to 1 times the base
    rate instead, for all curves; burn-in is counted in steps in both modes.

    Parameters
    ----------
    kind : linear, step, poly or multistep
    params : of the curve: linear {from, to}, step {step_size, gamma}, poly {gamma}, multistep {gamma, milestones}
    base_lrs : base rate of each parameter group
    epochs : length of the training
    epoch_length : steps an epoch
    update_mode : batch or epoch
    burn_in_steps, burn_in_start : see above

    Raises
    ------
    InputError
        if the kind or mode is unknown, a parameter is missing or a value is invalid
    """

    def __init__(
        self,
        kind: str,
        params: Mapping[str, Any],
        base_lrs: Sequence[float],
        epochs: int,
        epoch_length: int,
        update_mode: str = "batch",
        burn_in_steps: int = 0,
        burn_in_start: float = 0.0,
    ) -> None:
        if kind not in _CURVES:
            raise InputError(f"[scheduler] type: unknown schedule {kind!r}, choose from {', '.join(_CURVES)}")
        if update_mode not in ("batch", "epoch"):
            raise InputError(f"[scheduler] update_mode: {update_mode!r} is neither batch nor epoch")
        self._curve, required = _CURVES[kind]
        missing = [name for name in required if name not in params]
        if missing:
            raise InputError(f"[scheduler] params: a {kind} schedule needs {', '.join(missing)}")
        if kind == "step" and params["step_size"] <= 0:
            raise InputError(f"[scheduler] params: step_size must be positive, not {params['step_size']}")
        if epochs <= 0:
            raise InputError(f"[scheduler] epochs: must be positive, not {epochs}")
        super().__init__(base_lrs, epochs, epoch_length, update_mode == "epoch")
        self.params = dict(params)
        self.burn_in_steps = burn_in_steps
        self.burn_in_start = burn_in_start

    def factor(self, step: int, epoch: int) -> float:
        """See :meth:`LRSchedule.factor`."""
        if step <= self.burn_in_steps:
            return self.burn_in_start + step * (1.0 - self.burn_in_start) / self.burn_in_steps
        factor = self._curve(epoch if self.by_epoch else step, self.total, self.params)
        if not math.isfinite(factor):
            raise InputError(f"[scheduler] params: the schedule is not finite at step {step}: {self.params}")
        return factor
