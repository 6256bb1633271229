"""The losses of a training: read from the device now and then, averaged, and checked: an invalid one stops it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seamseg.training.optim.optimizer import running_statistics
from seamseg.training.options import TrainerOptions
from seamseg.training.step import StepResult
from seamseg.utils.distributed import World, gather_objects, max_over_processes
from seamseg.utils.errors import SeamsegError

MAX_OVERFLOWS = 64
"""As many overflows in a row end a training: each halves the loss scale, which begins at 2 ** 16."""


class Averages:
    """Means of numbers by name; `state` are the last value, the sum and the count of each, as in snapshots."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, float]] = {}

    def update(self, values: Mapping[str, float]) -> None:
        """Add a value for each name."""
        for name, value in values.items():
            entry = self.state.setdefault(name, {"sum": 0.0, "count": 0.0})
            self.state[name] = {"last": value, "sum": entry["sum"] + value, "count": entry["count"] + 1.0}

    def means(self) -> dict[str, float]:
        """Return the means of all names with values."""
        return {name: entry["sum"] / entry["count"] for name, entry in self.state.items() if entry["count"]}

    def pop_means(self) -> dict[str, float]:
        """Return the means of all names with values, and remove the values."""
        means = self.means()
        self.state = {}
        return means


class LossMeans(NamedTuple):
    """Averages since the last report, by name, `grad_norm` if one was finite, and the number of skipped updates."""

    losses: dict[str, float]
    gradients: dict[str, float]
    skipped: int


class InvalidStep(NamedTuple):
    """A step with an invalid loss of this process, or gradient, which all processes share, and its images."""

    step: int
    ids: list[str]
    problem: str
    of_loss: bool


class Diverged(SeamsegError):
    """A loss, a gradient or a weight is not finite, or a loss is over its limit."""


class LossCheck:
    """Averages the losses of the steps, and stops the training in all processes when one of them is invalid.

    Losses stay on the device until :attr:`full`, so that the host waits for it every few steps only; on the CPU reading
    is free. All processes must add the same steps. `recent`, `gradients` and `skipped` are since :meth:`pop_means`.
    """

    def __init__(self, options: TrainerOptions, world: World) -> None:
        self.world = world
        self.interval = 1 if world.device.type == "cpu" else options.log_interval
        self.begin_epoch()
        self._options = options
        self._in_a_row = 0
        self._names: list[str] = []
        self._unread: list[tuple[int, list[str], Tensor]] = []

    @property
    def full(self) -> bool:
        """Whether a :meth:`check` is due, the same in all processes."""
        return len(self._unread) >= self.interval

    def begin_epoch(self) -> None:
        """Reset all averages, but not the count of consecutive overflows. Call :meth:`check` before."""
        self.recent, self.epoch, self.gradients, self.skipped = Averages(), Averages(), Averages(), 0

    def add(self, step: int, result: StepResult) -> None:
        """Store the result of a step; the host does not wait for it."""
        values = {**result.losses, "loss": result.total, **result.metrics}
        self._names = list(values)
        scalars = (*values.values(), result.grad_norm, result.skipped)
        self._unread.append((step, result.ids, torch.stack([x.detach().float() for x in scalars])))

    def check(self) -> None:
        """Read the losses not read yet; Diverged if a loss or gradient of any process is invalid; collective."""
        found = self.read()
        if not max_over_processes(self.world, {"found": float(found is not None)})["found"]:
            return
        of_all = gather_objects(self.world, found)
        invalid = {rank: one for rank, one in enumerate(of_all) if one is not None}
        step = min(one.step for one in invalid.values())
        first = {rank: one for rank, one in invalid.items() if one.step == step}
        # an invalid loss of a process also invalidates the gradient of the others
        first = {rank: one for rank, one in first.items() if one.of_loss} or first
        problems = "; ".join(
            f"{one.problem} ({f'process {rank}, ' if len(of_all) > 1 else ''}images {', '.join(one.ids)})"
            for rank, one in first.items()
        )
        advice = self._options.smaller_rate
        raise Diverged(f"training stopped at step {step}: {problems}; {advice}, or check these images")

    def check_weights(self, net: nn.Module, step: int) -> None:
        """Raise Diverged if a weight or running statistic of any process is not finite; a collective call."""
        tensors = [x.detach() for x in (*net.parameters(), *running_statistics(net))]
        finite = torch.stack([torch.isfinite(x).all() for x in tensors]).all()
        if max_over_processes(self.world, {"found": float(not finite)})["found"]:
            advice = self._options.smaller_rate
            raise Diverged(f"training stopped after step {step}: its weights are not finite; {advice}")

    def read(self) -> InvalidStep | None:
        """Update the averages with the stored steps before the first invalid one, and return that one, if any."""
        if not self._unread:
            return None
        unread, self._unread = self._unread, []
        rows = torch.stack([values for _, _, values in unread]).double().cpu().tolist()
        limit = self._options.loss_limit
        for (step, ids, _), (*numbers, norm, skipped) in zip(unread, rows):
            values = dict(zip(self._names, numbers))
            problem = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
            if not problem and 0 < limit < values["loss"]:
                problem = f"loss = {values['loss']:g} is above {self._options.key('general.loss_limit')} = {limit:g}"
            if problem:
                return InvalidStep(step, ids, problem, True)
            self._in_a_row = 0 if math.isfinite(norm) else self._in_a_row + 1
            if self._in_a_row and self._options.precision != "fp16":
                return InvalidStep(step, ids, f"gradient norm = {norm}", False)
            # fewer were only skipped
            if self._in_a_row >= MAX_OVERFLOWS:
                problem = (
                    f"gradient norm = {norm} for {MAX_OVERFLOWS} steps in a row: fp16 overflows at every loss scale"
                )
                return InvalidStep(step, ids, problem, False)
            self.recent.update(values)
            self.epoch.update(values)
            if not self._in_a_row:
                self.gradients.update({"grad_norm": norm})
            self.skipped += bool(skipped)
        return None

    def pop_means(self) -> LossMeans:
        """Return the averages of this process over the checked steps since the last call."""
        skipped, self.skipped = self.skipped, 0
        return LossMeans(self.recent.pop_means(), self.gradients.pop_means(), skipped)

    def state_dict(self) -> dict[str, Any]:
        """Return averages of the losses up to the last step, as plain numbers; collective, errors as :meth:`check`."""
        self.check()
        return {
            "recent": dict(self.recent.state),
            "epoch": dict(self.epoch.state),
            "gradients": dict(self.gradients.state),
            "skipped": {"steps": {"count": self.skipped, "in_a_row": self._in_a_row}},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        for name, averages in (("recent", self.recent), ("epoch", self.epoch), ("gradients", self.gradients)):
            averages.state = dict(state[name])
        steps = state["skipped"]["steps"]
        self.skipped, self._in_a_row = int(steps["count"]), int(steps["in_a_row"])
