"""Scores of the Cityscapes protocol, as fractions, NaN if undefined; their JSON and their tables in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from seamseg.maps.evaluation.scores import PanopticScores, numbers_of, percent_lines
from seamseg.utils.errors import counted

_IOU_KEYS = ("IoU", "iIoU")
_AP_KEYS = ("AP", "AP50")
_Row: TypeAlias = tuple[str, tuple[float, ...]]


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
        return {**numbers_of(self, _AP_KEYS), "n_images": self.n_images, "classes": _by_name(self.classes, _AP_KEYS)}


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
        if (pixel := self.pixel) is not None:
            means: list[_Row] = [
                (f"{len(pixel.classes)} classes", (pixel.IoU, pixel.iIoU)),
                (f"{len(pixel.categories)} categories", (pixel.category_IoU, pixel.category_iIoU)),
            ]
            parts = [means, _rows(pixel.classes, _IOU_KEYS), _rows(pixel.categories, _IOU_KEYS)]
            sections.append(_section("pixel level", _IOU_KEYS, parts, pixel.n_images))
        if (instance := self.instance) is not None:
            row: _Row = ("all", (instance.AP, instance.AP50))
            parts = [[row], _rows(instance.classes, _AP_KEYS)]
            sections.append(_section("instance level", _AP_KEYS, parts, instance.n_images))
        if self.panoptic is not None:
            sections.append(f"panoptic\n{self.panoptic.table()}")
        if self.not_found:
            sections.append(f"not evaluated, because not found: {', '.join(self.not_found)}")
        return "\n\n".join(sections)


def _by_name(entries: Iterable[Any], keys: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    return {entry.name: numbers_of(entry, keys) for entry in entries}


def _rows(entries: Iterable[Any], keys: Sequence[str]) -> list[_Row]:
    rows = [(entry.name, tuple(getattr(entry, key) for key in keys)) for entry in entries]
    return [row for row in rows if not all(math.isnan(value) for value in row[1])]


def _section(title: str, keys: Sequence[str], parts: Iterable[Sequence[_Row]], n_images: int) -> str:
    lines = [title]
    for rows in parts:
        lines += [*percent_lines("", keys, rows, width=14, column=10), ""]
    return "\n".join([*lines, f"{counted(n_images, 'frame')}; in percent; means over the classes that occur"])
