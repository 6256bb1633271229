"""What a Cityscapes evaluation ends with, all of it fractions; NaN where there was nothing to measure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from seamseg.evaluation.scores import PanopticScores, or_none


@dataclass(frozen=True)
class LabelScores:
    """Pixel-level scores of one class or category; `iIoU` is NaN where instances are not told apart."""

    name: str
    IoU: float
    iIoU: float


@dataclass(frozen=True)
class PixelScores:
    """Pixel-level scores: means over the classes and over the categories that have a value, and each of them."""

    IoU: float
    iIoU: float
    category_IoU: float
    category_iIoU: float
    n_images: int
    classes: list[LabelScores]
    categories: list[LabelScores]

    def to_json(self) -> dict[str, Any]:
        """The scores under their names, null for NaN."""
        return {
            **_numbers(self, ("IoU", "iIoU", "category_IoU", "category_iIoU")),
            "n_images": self.n_images,
            "classes": _by_name(self.classes, ("IoU", "iIoU")),
            "categories": _by_name(self.categories, ("IoU", "iIoU")),
        }


AP_KEYS = ("AP", "AP50", "AP100m", "AP50m", "AP50_50m")
"""Names of the average precisions: all IoU thresholds, .5 alone, things up to 100 m, up to 50 m, these at .5."""


@dataclass(frozen=True)
class InstanceClassScores:
    """As :class:`InstanceLevelScores`, of one class; NaN if it has no instance in the ground truth."""

    name: str
    AP: float
    AP50: float
    AP100m: float
    AP50m: float
    AP50_50m: float


@dataclass(frozen=True)
class InstanceLevelScores:
    """Average precision, the mean over the classes that have one.

    Attributes
    ----------
    AP : mean over the IoU thresholds .5, .55 ... .95
    AP50 : of the threshold .5
    AP100m, AP50m : AP of things no further than 100 m and 50 m, NaN where distances are not known
    AP50_50m : AP50 of things no further than 50 m
    """

    AP: float
    AP50: float
    AP100m: float
    AP50m: float
    AP50_50m: float
    n_images: int
    classes: list[InstanceClassScores]

    def to_json(self) -> dict[str, Any]:
        """The scores under their names, null for NaN."""
        return {**_numbers(self, AP_KEYS), "n_images": self.n_images, "classes": _by_name(self.classes, AP_KEYS)}


@dataclass(frozen=True)
class CityscapesScores:
    """The scores of the parts of a results folder, None for a part that it lacks."""

    pixel: PixelScores | None = None
    instance: InstanceLevelScores | None = None
    panoptic: PanopticScores | None = None
    not_found: list[str] = field(default_factory=list)
    """What the results folder lacks, in words"""

    def to_json(self) -> dict[str, Any]:
        """What `--json` writes: the scores of each part, null for one that is not there."""
        parts = {"pixel": self.pixel, "instance": self.instance, "panoptic": self.panoptic}
        return {"protocol": "cityscapes", **{k: None if p is None else p.to_json() for k, p in parts.items()}}


def _numbers(scores: object, keys: Iterable[str]) -> dict[str, float | None]:
    return {key: or_none(getattr(scores, key)) for key in keys}


def _by_name(entries: Iterable[Any], keys: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    return {entry.name: _numbers(entry, keys) for entry in entries}
