"""Learning-rate schedules as pure functions of the step and the epoch (docs/contract.md, section 4)."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from seamseg.config import Config
from seamseg.config.components import register
from seamseg.config.sections import Scheduler
from seamseg.utils.errors import InputError, counted, named_errors

_ORIGINAL_IMAGES, _ORIGINAL_RATE = 8, 0.01
"""Images of a step of the original, and their learning rate."""

Curve = Callable[[int, int, Any], float]
"""The factor of the base rates at `t` of `total` steps or epochs, with the keys of the component."""


@register("scheduler", "linear")
def linear(t: int, total: int, keys: Scheduler) -> float:
    """Return a factor between `from` and `to` of `params`."""
    first, last = _params(keys, "from", "to")
    return float(first + (last - first) * t / total)


@register("scheduler", "step")
def step(t: int, total: int, keys: Scheduler) -> float:
    """Return `gamma ** (t // step_size)`."""
    size, gamma = _params(keys, "step_size", "gamma")
    if size <= 0:
        raise InputError(f"[scheduler] params: step_size must be positive, not {size}")
    return float(gamma ** (t // size))


@register("scheduler", "poly")
def poly(t: int, total: int, keys: Scheduler) -> float:
    """Return `(1 - t / total) ** gamma`."""
    # past the end (a resumed run with fewer epochs) the base is negative
    return float(max(0.0, 1.0 - t / total) ** _params(keys, "gamma")[0])


@register("scheduler", "multistep")
def multistep(t: int, total: int, keys: Scheduler) -> float:
    """Return `gamma` to the number of `milestones` up to t."""
    gamma, milestones = _params(keys, "gamma", "milestones")
    return float(gamma ** bisect_right(sorted(milestones), t))


def _params(keys: Scheduler, *names: str) -> list[Any]:
    if missing := [name for name in names if name not in keys.params]:
        raise InputError(f"[scheduler] params: a {keys.type} schedule needs {', '.join(missing)}")
    return [keys.params[name] for name in names]


class LRSchedule:
    """Learning rates of all parameter groups; InputError if the curve cannot be evaluated.

    The curve runs over `t`, the step from 1 (`update_mode` batch) or the epoch from 0 (epoch), out of `total`, the
    number of steps or epochs. While `step <= burn_in_steps` the rate rises linearly from `burn_in_start` to 1 times the
    base rate instead, for all curves; burn-in is counted in steps in both modes.
    """

    def __init__(
        self, curve: Curve, keys: Any, options: Scheduler, base_lrs: Sequence[float], epoch_length: int
    ) -> None:
        self.base_lrs = list(base_lrs)
        self.by_epoch = options.update_mode == "epoch"
        self.total = options.epochs if self.by_epoch else options.epochs * max(1, epoch_length)
        self._curve, self._keys, self._options = curve, keys, options
        last = self.total - self.by_epoch
        for t in {0, 1, last // 4, last // 2, 3 * last // 4, last}:
            self._at(t)

    def get_lr(self, step: int, epoch: int) -> list[float]:
        """Return the learning rate of each parameter group at a step, from 1, of an epoch, from 0."""
        factor = self.factor(step, epoch)
        return [base * factor for base in self.base_lrs]

    def factor(self, step: int, epoch: int) -> float:
        """Return the factor of the base rates; arguments as :meth:`get_lr`."""
        options = self._options
        if step <= options.burn_in_steps:
            return options.burn_in_start + step * (1.0 - options.burn_in_start) / options.burn_in_steps
        return self._at(epoch if self.by_epoch else step)

    def _at(self, t: int) -> float:
        with named_errors(f"scheduler {self._options.type}", self._curve.__module__):
            factor = float(self._curve(t, self.total, self._keys))
        if not 0 <= factor < math.inf:
            raise InputError(f"[scheduler] {self._options.type}: the factor of the learning rate at {t} is {factor}")
        return factor


def step_note(config: Config, images: int, epoch_length: int) -> str | None:
    """Return what to set for so many images per step, None if rate and schedule are for it; lengths are in steps."""
    optimizer, scheduler = config.optimizer, config.scheduler
    meant = optimizer.step_images or (_ORIGINAL_IMAGES if optimizer.lr == _ORIGINAL_RATE else images)
    if meant == images:
        return None
    keys = {"optimizer.step_images": str(images), "optimizer.lr": f"{optimizer.lr * images / meant:.6g}"}
    if scheduler.burn_in_steps:
        keys["scheduler.burn_in_steps"] = str(_scaled(scheduler.burn_in_steps, meant, images))
    longer = {name: value for name, value in scheduler.params.items() if name in ("milestones", "step_size")}
    drop = ""
    if longer and scheduler.update_mode == "batch":
        steps = next(iter(longer.values()))
        numbers = steps if isinstance(steps, (list, tuple)) else [steps]
        # a wrong type is reported with the schedule
        if numbers and all(isinstance(number, (int, float)) for number in numbers):
            epoch = min(numbers) // max(1, epoch_length)
            when = (
                f"drop after epoch {epoch:.0f} of" if epoch < scheduler.epochs else "not drop in its epochs, which are"
            )
            drop = f", the rate would {when} {scheduler.epochs}"
        longer = {name: _scaled(value, meant, images) for name, value in longer.items()}
        keys["scheduler.params"] = f"'{json.dumps(scheduler.params | longer)}'"
    batches, rest = divmod(meant * optimizer.accumulate, images)
    accumulate = "" if rest else f"optimizer.accumulate={batches}, or "
    given = " ".join(f"{key}={value}" for key, value in keys.items())
    has = f"a step has {counted(images, 'image')}, learning rate and schedule are for {meant}{drop}"
    return f"{has}: set {accumulate}by the linear rule {given}"


def _scaled(steps: Any, meant: int, images: int) -> Any:
    """Return numbers of steps, alone or in a list, for so many `images` a step in place of `meant`."""
    if isinstance(steps, (list, tuple)):
        return [_scaled(number, meant, images) for number in steps]
    # a wrong type is reported with the schedule
    return max(1, round(steps * meant / images)) if isinstance(steps, (int, float)) else steps
