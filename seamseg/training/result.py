"""The result of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seamseg.maps.evaluation.scores import Scores

_POSITION = ("step", "epoch", "time", "seconds")
"""Numbers of a line of `metrics.jsonl` that are no scores."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """The end of a training, the same in all of its processes.

    Attributes
    ----------
    run_folder : folder with the snapshots, a model for :func:`seamseg.load`
    steps, epochs : finished ones, those before a resume included
    best : the score that has selected `model_best.pth.tar`: a fraction, or the score of a custom metric as that gives
        it; None without one
    stopped : reason of the callback that ended the training; empty if it is complete
    history : the lines of `metrics.jsonl`, those before a resume included
    validation : the scores of the last validation, also of each class; None if there was none since the resume
    """

    run_folder: Path
    steps: int = 0
    epochs: int = 0
    best: float | None = None
    stopped: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    validation: Scores | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of the last validation by name: fractions such as `PQ`, and numbers of custom metrics.

        Undefined ones are left out; empty without a validation.
        """
        if self.validation is not None:
            return numbers(self.validation.to_json())
        lines = [line for line in self.history if line.get("kind") == "validation"]
        return {name: value for name, value in numbers(lines[-1]).items() if name not in _POSITION} if lines else {}

    def __repr__(self) -> str:
        end = f"stopped: {self.stopped}" if self.stopped else "done"
        lines = [f"{self.run_folder}: {end} ({self.steps} steps, {self.epochs} epochs)"]
        lines += [] if self.best is None else [f"best score {self.best:.4g}"]
        if self.validation is not None:
            lines.append(self.validation.table())
        elif self.scores:
            lines.append(", ".join(f"{name} {value:.4g}" for name, value in self.scores.items()))
        return "\n".join(lines)


def numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of the JSON of scores by name, without texts, tables and what is undefined."""
    return {name: float(value) for name, value in content.items() if type(value) in (int, float)}
