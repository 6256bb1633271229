"""The training of a run for its report: loss and PQ by epoch, speed, memory and time, from `metrics.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from seamseg.checkpoints.names import METRICS_NAME
from seamseg.training.logging.metrics import read_metrics

_PEAKS = ("reserved_peak_gib", "rss_peak_gib")
"""Names of the peak memory, that of a GPU first."""

_LARGEST = 1e15
"""Larger numbers are damaged ones; their sums could overflow."""


def training_of(evaluation: Path) -> dict[str, Any] | None:
    """Summarise the training in an evaluation folder or the folder around it; None if neither has a `metrics.jsonl`."""
    for folder in (evaluation, evaluation.absolute().parent):
        if (folder / METRICS_NAME).is_file():
            return summarise(read_metrics(folder))
    return None


def summarise(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Summarise the lines of a `metrics.jsonl`; None if they report no step. Damaged lines and numbers are left out.

    Returns
    -------
    `steps` that the lines report; `seconds` of steps and validations; `images_per_second`, the median of the lines;
    `memory_gib`, the peak of the GPU or the process; `epochs` from 1, with the mean `loss` and the `PQ` of each. None
    where lines have no value.
    """
    lines = [line for line in metrics if _is_count(line.get("step")) and _is_count(line.get("epoch"))]
    train = sorted(_numbers(lines, "train"), key=lambda line: line["step"])
    validations = _numbers(lines, "validation")
    if not train:
        return None
    steps = [line["step"] for line in train]
    spans = [after - before for before, after in pairwise(steps)]
    # a resumed training may begin a file at any step
    spans.insert(0, min(steps[0], max(spans, default=steps[0])))
    loss: dict[int, list[tuple[int, float]]] = {epoch: [] for epoch in sorted({line["epoch"] for line in lines})}
    seconds = math.fsum(line.get("seconds", 0) for line in validations)
    # a line has the means of the steps since the line before it
    for line, span in zip(train, spans):
        if "loss" in line:
            loss[line["epoch"]].append((span, line["loss"]))
        seconds += span * line.get("step_seconds", 0)
    pq = {line["epoch"]: line["PQ"] for line in validations if "PQ" in line}
    speeds = [line["images_per_second"] for line in train if "images_per_second" in line]
    peaks = [[line[name] for line in train if name in line] for name in _PEAKS]
    return {
        "steps": sum(spans),
        "seconds": seconds,
        "images_per_second": median(speeds) if speeds else None,
        "memory_gib": next((max(found) for found in peaks if found), None),
        "epochs": [epoch + 1 for epoch in loss],
        "loss": [_mean(values) for values in loss.values()],
        "PQ": [pq.get(epoch) for epoch in loss],
    }


def _mean(values: Sequence[tuple[int, float]]) -> float | None:
    total = sum(span for span, _ in values)
    return math.fsum(span * value for span, value in values) / total if total else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _numbers(lines: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind with their numbers only."""
    return [
        {name: n for name, n in line.items() if type(n) in (int, float) and abs(n) < _LARGEST}
        for line in lines
        if line.get("kind") == kind
    ]
