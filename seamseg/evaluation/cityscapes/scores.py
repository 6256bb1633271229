"""Scores of the Cityscapes protocol, as fractions, NaN if undefined; their JSON and their tables in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from seamseg.evaluation.metric import or_none
from seamseg.evaluation.scores import PanopticScores, format_table, percent
from seamseg.utils.errors import counted


@dataclass(frozen=True)
class LabelScores:
    """Pixel-level scores of one class or category; `iIoU` is NaN for classes without instances."""

    name: str
    IoU: float
    iIoU: float


@dataclass(frozen=True)
class PixelScores:
    """Pixel-level scores: means over the classes and categories with a value, and the scores of each."""

    IoU: float
    iIoU: float
    category_IoU: float
    category_iIoU: float
    n_images: int
    classes: list[LabelScores]
    categories: list[LabelScores]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN."""
        return {
            **_numbers(self, ("IoU", "iIoU", "category_IoU", "category_iIoU")),
            "n_images": self.n_images,
            "classes": _by_name(self.classes, ("IoU", "iIoU")),
            "categories": _by_name(self.categories, ("IoU", "iIoU")),
        }


AP_KEYS = ("AP", "AP50")
"""Average precisions: all IoU thresholds, .5 only."""


@dataclass(frozen=True)
class InstanceClassScores:
    """Average precision of one class, see :class:`InstanceLevelScores`; NaN without instances in the ground truth."""

    name: str
    AP: float
    AP50: float


@dataclass(frozen=True)
class InstanceLevelScores:
    """Average precision: means over the classes with a value.

    Attributes
    ----------
    AP : mean over the IoU thresholds .5, .55 ... .95
    AP50 : AP at the threshold .5
    """

    AP: float
    AP50: float
    n_images: int
    classes: list[InstanceClassScores]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN."""
        return {**_numbers(self, AP_KEYS), "n_images": self.n_images, "classes": _by_name(self.classes, AP_KEYS)}


@dataclass(frozen=True)
class CityscapesScores:
    """Scores of the parts of a results folder, None for missing parts."""

    pixel: PixelScores | None = None
    instance: InstanceLevelScores | None = None
    panoptic: PanopticScores | None = None
    not_found: list[str] = field(default_factory=list)
    """Names of the missing parts"""

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file: the scores of each part, None for missing parts."""
        parts = {"pixel": self.pixel, "instance": self.instance, "panoptic": self.panoptic}
        return {"protocol": "cityscapes", **{k: None if p is None else p.to_json() for k, p in parts.items()}}


def _numbers(scores: object, keys: Iterable[str]) -> dict[str, float | None]:
    return {key: or_none(getattr(scores, key)) for key in keys}


def _by_name(entries: Iterable[Any], keys: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    return {entry.name: _numbers(entry, keys) for entry in entries}


def format_cityscapes(scores: CityscapesScores, per_class: bool = True) -> str:
    """Format scores as plain text in percent, one section per part, `-` for NaN, and list the missing parts.

    Parameters
    ----------
    scores : scores as fractions
    per_class : list the classes and categories, too
    """
    sections = []
    if scores.pixel is not None:
        sections.append(["pixel level", *_pixel_lines(scores.pixel, per_class)])
    if scores.instance is not None:
        sections.append(["instance level", *_instance_lines(scores.instance, per_class)])
    if scores.panoptic is not None:
        sections.append(["panoptic", format_table(scores.panoptic, per_class)])
    if scores.not_found:
        sections.append([f"not evaluated, because not found: {', '.join(scores.not_found)}"])
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
    return [*lines, "", _footer(scores.n_images)]


def _instance_lines(scores: InstanceLevelScores, per_class: bool) -> list[str]:
    lines = _rows(AP_KEYS, [("all", [getattr(scores, key) for key in AP_KEYS])])
    if per_class:
        lines += ["", *_rows(AP_KEYS, _values(scores.classes, AP_KEYS))]
    return [*lines, "", _footer(scores.n_images)]


def _values(entries: Sequence[Any], keys: Sequence[str]) -> Iterable[tuple[str, Sequence[float]]]:
    for entry in entries:
        values = [getattr(entry, key) for key in keys]
        if not all(math.isnan(v) for v in values):
            yield entry.name, values


def _rows(keys: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> list[str]:
    head = f"{'':<14}" + "".join(f"{key:>10}" for key in keys)
    return [head, *(f"{name:<14}" + "".join(f"{percent(v):>10}" for v in values) for name, values in rows)]


def _footer(count: int) -> str:
    return f"{counted(count, 'frame')}; in percent; means over the classes that occur"
