"""Scores of the Cityscapes protocol, as fractions, NaN if undefined; their JSON and their tables in percent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from seamseg.maps.evaluation.scores import PanopticScores, or_none, percent_lines
from seamseg.utils.errors import counted

Numbers: TypeAlias = Mapping[str, float]
"""`IoU` and `iIoU` of the pixel level, `iIoU` NaN for classes without instances; `AP` and `AP50` of instances."""


@dataclass(frozen=True)
class LevelScores:
    """Scores of the pixel or the instance level.

    Attributes
    ----------
    means : over the entries with a value, by name, also with `category_` in front for categories; AP is over the IoU
        thresholds .5, .55 ... .95, and at .5
    n_images : number of frames
    groups : the scores of each class by name, as `classes`; of the pixel level also those of `categories`
    """

    means: Numbers
    n_images: int
    groups: Mapping[str, Mapping[str, Numbers]]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN."""
        groups = {title: {name: _json(row) for name, row in rows.items()} for title, rows in self.groups.items()}
        return {**_json(self.means), "n_images": self.n_images, **groups}

    def table(self, title: str) -> str:
        """Format the scores as plain text in percent."""
        keys, values = list(self.means)[:2], list(self.means.values())
        counts = [f"{len(rows)} {group}" for group, rows in self.groups.items()] if len(values) > 2 else ["all"]
        parts = [[(name, values[2 * k : 2 * k + 2]) for k, name in enumerate(counts)]]
        for rows in self.groups.values():
            known = {name: list(row.values()) for name, row in rows.items()}
            parts.append([(name, row) for name, row in known.items() if not all(map(math.isnan, row))])
        lines = [title]
        for part in parts:
            lines += [*percent_lines("", keys, part, width=14, column=10), ""]
        return "\n".join([*lines, f"{counted(self.n_images, 'frame')}; in percent; means over the classes that occur"])


@dataclass(frozen=True)
class CityscapesScores:
    """Scores of the parts of a results folder, None for missing parts.

    Attributes
    ----------
    not_found : names of the missing parts
    """

    pixel: LevelScores | None = None
    instance: LevelScores | None = None
    panoptic: PanopticScores | None = None
    not_found: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file: the scores of each part, None for missing parts."""
        parts = {"pixel": self.pixel, "instance": self.instance, "panoptic": self.panoptic}
        return {"protocol": "cityscapes", **{k: None if p is None else p.to_json() for k, p in parts.items()}}

    def table(self) -> str:
        """Format the scores as plain text in percent, a section for each part, `-` for NaN; list the missing parts."""
        levels = {"pixel level": self.pixel, "instance level": self.instance}
        sections = [level.table(title) for title, level in levels.items() if level is not None]
        if self.panoptic is not None:
            sections.append(f"panoptic\n{self.panoptic.table()}")
        if self.not_found:
            sections.append(f"not evaluated, because not found: {', '.join(self.not_found)}")
        return "\n\n".join(sections)


def _json(numbers: Numbers) -> dict[str, float | None]:
    return {name: or_none(value) for name, value in numbers.items()}
