"""Scores of the Cityscapes protocol, as fractions, NaN if undefined; their JSON and their tables in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from seamseg.evaluation.scores import PanopticScores, numbers_of
from seamseg.evaluation.table import percent_lines
from seamseg.utils.errors import counted

_IOU_KEYS = ("IoU", "iIoU")
AP_KEYS = ("AP", "AP50")
"""Average precisions: all IoU thresholds, .5 only."""


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
            **numbers_of(self, ("IoU", "iIoU", "category_IoU", "category_iIoU")),
            "n_images": self.n_images,
            "classes": _by_name(self.classes, _IOU_KEYS),
            "categories": _by_name(self.categories, _IOU_KEYS),
        }


@dataclass(frozen=True)
class InstanceClassScores:
    """Average precision of one class, see :class:`InstanceLevelScores`; NaN without instances in the ground truth."""

    name: str
    AP: float
    AP50: float


@dataclass(frozen=True)
class InstanceLevelScores:
    """Average precision over the IoU thresholds .5, .55 ... .95, and at .5: means over the classes with a value."""

    AP: float
    AP50: float
    n_images: int
    classes: list[InstanceClassScores]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN."""
        return {**numbers_of(self, AP_KEYS), "n_images": self.n_images, "classes": _by_name(self.classes, AP_KEYS)}


@dataclass(frozen=True)
class CityscapesScores:
    """Scores of the parts of a results folder, None for missing parts.

    Attributes
    ----------
    not_found : names of the missing parts
    """

    pixel: PixelScores | None = None
    instance: InstanceLevelScores | None = None
    panoptic: PanopticScores | None = None
    not_found: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file: the scores of each part, None for missing parts."""
        parts = {"pixel": self.pixel, "instance": self.instance, "panoptic": self.panoptic}
        return {"protocol": "cityscapes", **{k: None if p is None else p.to_json() for k, p in parts.items()}}

    def table(self) -> str:
        """Format the scores as plain text in percent, a section for each part, `-` for NaN; list the missing parts."""
        sections = []
        if self.pixel is not None:
            sections.append(["pixel level", *_pixel_lines(self.pixel)])
        if self.instance is not None:
            sections.append(["instance level", *_instance_lines(self.instance)])
        if self.panoptic is not None:
            sections.append(["panoptic", self.panoptic.table()])
        if self.not_found:
            sections.append([f"not evaluated, because not found: {', '.join(self.not_found)}"])
        return "\n\n".join("\n".join(lines) for lines in sections)


def _by_name(entries: Iterable[Any], keys: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    return {entry.name: numbers_of(entry, keys) for entry in entries}


def _pixel_lines(scores: PixelScores) -> list[str]:
    means = [
        (f"{len(scores.classes)} classes", (scores.IoU, scores.iIoU)),
        (f"{len(scores.categories)} categories", (scores.category_IoU, scores.category_iIoU)),
    ]
    lines = _rows(_IOU_KEYS, means)
    for entries in (scores.classes, scores.categories):
        lines += ["", *_rows(_IOU_KEYS, _values(entries, _IOU_KEYS))]
    return [*lines, "", _footer(scores.n_images)]


def _instance_lines(scores: InstanceLevelScores) -> list[str]:
    means = _rows(AP_KEYS, [("all", (scores.AP, scores.AP50))])
    return [*means, "", *_rows(AP_KEYS, _values(scores.classes, AP_KEYS)), "", _footer(scores.n_images)]


def _values(entries: Iterable[Any], keys: Sequence[str]) -> Iterable[tuple[str, Sequence[float]]]:
    for entry in entries:
        values = [getattr(entry, key) for key in keys]
        if not all(math.isnan(v) for v in values):
            yield entry.name, values


def _rows(keys: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> list[str]:
    return percent_lines("", keys, rows, width=14, column=10)


def _footer(count: int) -> str:
    return f"{counted(count, 'frame')}; in percent; means over the classes that occur"
