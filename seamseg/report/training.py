"""The training of a run for its report: loss and PQ by epoch, speed, memory and time, from `metrics.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from seamseg.training.logging.metrics import METRICS_NAME, read_metrics

_PEAKS = ("reserved_peak_gib", "rss_peak_gib")
"""Peaks of memory, of a GPU if there was one."""


def training_of(evaluation: Path) -> dict[str, Any] | None:
    """Summarise the training in an evaluation folder or the folder around it; None if neither has a `metrics.jsonl`."""
    for folder in (evaluation, evaluation.resolve().parent):
        if (folder / METRICS_NAME).is_file():
            return summarise(read_metrics(folder))
    return None


def summarise(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Summarise the lines of a `metrics.jsonl`; None if they report no step.

    Returns
    -------
    `steps`; `seconds` of steps and validations; `images_per_second`, the median of the lines; `memory_gib`, the peak of
    the GPU or the process; `epochs` from 1, with the mean `loss` and the `PQ` of each. None where lines have no value.
    """
    lines = [line for line in metrics if isinstance(line.get("epoch"), int)]
    train = [line for line in lines if line.get("kind") == "train"]
    validations = [line for line in lines if line.get("kind") == "validation"]
    if not train:
        return None
    loss: dict[int, list[float]] = {line["epoch"]: [] for line in sorted(lines, key=lambda line: line["epoch"])}
    pq: dict[int, float] = {}
    seconds, before = math.fsum(_numbers(validations, "seconds")), 0
    for line in train:
        loss[line["epoch"]] += _numbers([line], "loss")
        # a line has the means of the steps since the line before it
        seconds += (line["step"] - before) * math.fsum(_numbers([line], "step_seconds"))
        before = line["step"]
    for line in validations:
        for value in _numbers([line], "PQ"):
            pq[line["epoch"]] = value
    peaks = next((found for found in (_numbers(train, name) for name in _PEAKS) if found), [])
    speeds = _numbers(train, "images_per_second")
    return {
        "steps": before,
        "seconds": seconds,
        "images_per_second": median(speeds) if speeds else None,
        "memory_gib": max(peaks, default=None),
        "epochs": [epoch + 1 for epoch in loss],
        "loss": [fmean(values) if values else None for values in loss.values()],
        "PQ": [pq.get(epoch) for epoch in loss],
    }


def _numbers(lines: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    values = [line.get(name) for line in lines]
    return [float(value) for value in values if isinstance(value, (int, float))]
