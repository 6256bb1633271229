"""Cityscapes scores as tables for people, in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from seamseg.evaluation.cityscapes.scores import AP_KEYS, CityscapesScores, InstanceLevelScores, PixelScores
from seamseg.evaluation.tables import format_table, percent


def format_cityscapes(scores: CityscapesScores, per_class: bool = True) -> str:
    """Plain text in percent: a section a part; `-` where there was nothing to measure; and what was not found.

    Parameters
    ----------
    scores : as fractions
    per_class : also list the classes and categories
    """
    sections = []
    if scores.pixel is not None:
        sections.append(["pixel level", *_pixel_lines(scores.pixel, per_class)])
    if scores.instance is not None:
        sections.append(["instance level", *_instance_lines(scores.instance, per_class)])
    if scores.panoptic is not None:
        sections.append(["panoptic", format_table(scores.panoptic, per_class)])
    if scores.not_found:
        sections.append([f"not scored, since not found: {', '.join(scores.not_found)}"])
    return "\n\n".join("\n".join(lines) for lines in sections)


def _pixel_lines(scores: PixelScores, per_class: bool) -> list[str]:
    groups = [
        ("classes", scores.IoU, scores.iIoU, scores.classes),
        ("categories", scores.category_IoU, scores.category_iIoU, scores.categories),
    ]
    keys = ("IoU", "iIoU")
    lines = _rows(keys, ((f"{len(members)} {title}", (iou, weighted)) for title, iou, weighted, members in groups))
    if per_class:
        for _, _, _, members in groups:
            lines += ["", *_rows(keys, _values(members, keys))]
    return [*lines, "", _closing(scores.n_images)]


def _instance_lines(scores: InstanceLevelScores, per_class: bool) -> list[str]:
    # without distances the columns that need them would be empty
    keys = [k for k in AP_KEYS if k in AP_KEYS[:2] or any(not math.isnan(getattr(c, k)) for c in scores.classes)]
    lines = _rows(keys, [("all", [getattr(scores, k) for k in keys])])
    if per_class:
        lines += ["", *_rows(keys, _values(scores.classes, keys))]
    note = "" if "AP50m" in keys else "; AP100m and AP50m need the distances of the true instances"
    return [*lines, "", _closing(scores.n_images) + note]


def _values(entries: Sequence[Any], keys: Sequence[str]) -> Iterable[tuple[str, Sequence[float]]]:
    for entry in entries:
        values = [getattr(entry, key) for key in keys]
        if not all(math.isnan(v) for v in values):
            yield entry.name, values


def _rows(keys: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> list[str]:
    head = f"{'':<14}" + "".join(f"{key:>10}" for key in keys)
    return [head, *(f"{name:<14}" + "".join(f"{percent(v):>10}" for v in values) for name, values in rows)]


def _closing(count: int) -> str:
    return f"{count} frame{'' if count == 1 else 's'}; in percent; means are over what occurs"
