"""What is stated with the scores of a model whose classes were mapped to those of the data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from seamseg.panoptic_map import ClassInfo

ScoresByClass: TypeAlias = Mapping[str, Sequence[tuple[ClassInfo, float]]]
"""The scores of each class, by the name of their mean."""


@dataclass(frozen=True)
class MappedClasses:
    """The classes of a model that each scored class of the data set stands for.

    Attributes
    ----------
    table : table of the classes, as given
    sources : names of the classes of the model; a class without any counts as missed where it occurs
    void : classes of the model whose predictions are void
    """

    table: str
    sources: Mapping[ClassInfo, Sequence[str]]
    void: Sequence[str]

    @property
    def missing(self) -> list[str]:
        """Classes of the data set that the model has no class for."""
        return [info.name for info, names in self.sources.items() if not names]

    def to_json(self, by_class: ScoresByClass) -> dict[str, Any]:
        """Return table, classes and the means over the classes that the model has one for, None for NaN."""
        classes = [{"name": info.name, "model": list(names)} for info, names in self.sources.items()]
        means = {name: None if math.isnan(mean) else mean for name, mean in self._means(by_class).items()}
        return {
            "table": self.table,
            "classes": classes,
            "missing": self.missing,
            "void": list(self.void),
            "without_missing": means,
        }

    def line(self, by_class: ScoresByClass) -> str:
        """Format the main facts, scores in percent."""
        text = f"classes of the model mapped by {self.table}; {len(self.void)} of them are void"
        if not self.missing:
            return text
        means = ", ".join(f"{name} {100 * mean:.2f}" for name, mean in self._means(by_class).items())
        return f"{text}\nit has none for {', '.join(self.missing)}, which count as missed; without these: {means}"

    def _means(self, by_class: ScoresByClass) -> dict[str, float]:
        means = {}
        for name, values in by_class.items():
            known = [value for info, value in values if self.sources.get(info) and not math.isnan(value)]
            means[name] = math.fsum(known) / len(known) if known else math.nan
        return means
