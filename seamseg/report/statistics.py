"""What the page says of all images: histograms, and a short entry an image to sort and filter by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from seamseg.evaluation.record import ImageRecord

BINS = 20
"""Bins of scores and of PQ, both from 0 to 1."""

MATCHED, MISSED, FALSE = 1, 2, 4
"""Bits that tell what happened to a class in an image."""


@dataclass(frozen=True)
class ImageEntry:
    """An image in short.

    Attributes
    ----------
    image_id : as in the JSONs
    width, height : of the maps
    pq : fraction, None if nothing was measured
    missed, false : segments of the ground truth without a match, predictions without one
    classes : bits of :data:`MATCHED`, :data:`MISSED`, :data:`FALSE` by dense class
    """

    image_id: int | str
    width: int
    height: int
    pq: float | None
    missed: int
    false: int
    classes: dict[int, int]


@dataclass
class Statistics:
    """Counts over images; see :func:`gather`.

    Attributes
    ----------
    images : in the order of the file
    pq : `BINS` counts of images
    score_matched, score_false : `BINS` counts of predictions that have a score
    area_matched, area_missed : segments of the ground truth by the whole part of log2(area)
    unscored : matched or false predictions without a score
    """

    images: list[ImageEntry] = field(default_factory=list)
    pq: list[int] = field(default_factory=lambda: [0] * BINS)
    score_matched: list[int] = field(default_factory=lambda: [0] * BINS)
    score_false: list[int] = field(default_factory=lambda: [0] * BINS)
    area_matched: dict[int, int] = field(default_factory=dict)
    area_missed: dict[int, int] = field(default_factory=dict)
    unscored: int = 0

    def add(self, image: ImageRecord) -> None:
        """Count an image."""
        classes: dict[int, int] = {}
        missed = false = 0
        if image.PQ is not None:
            self.pq[_bin(image.PQ)] += 1
        for segment in image.ground_truth:
            if segment.outcome == "crowd":
                continue
            found = segment.outcome == "matched"
            missed += not found
            classes[segment.category] = classes.get(segment.category, 0) | (MATCHED if found else MISSED)
            area = self.area_matched if found else self.area_missed
            power = int(math.log2(max(segment.area, 1)))
            area[power] = area.get(power, 0) + 1
        for segment in image.prediction:
            if segment.outcome == "forgiven":
                continue
            right = segment.outcome == "matched"
            false += not right
            if not right:
                classes[segment.category] = classes.get(segment.category, 0) | FALSE
            if segment.score is None:
                self.unscored += 1
            else:
                (self.score_matched if right else self.score_false)[_bin(segment.score)] += 1
        self.images.append(ImageEntry(image.image_id, image.width, image.height, image.PQ, missed, false, classes))

    def to_json(self) -> dict[str, Any]:
        """The histograms; areas as lists from bin `area_from` on."""
        powers = [*self.area_matched, *self.area_missed]
        span = range(min(powers), max(powers) + 1) if powers else range(0)
        return {
            "pq": self.pq,
            "score_matched": self.score_matched,
            "score_false": self.score_false,
            "unscored": self.unscored,
            "area_from": span.start,
            "area_matched": [self.area_matched.get(p, 0) for p in span],
            "area_missed": [self.area_missed.get(p, 0) for p in span],
        }


def gather(images: Iterable[ImageRecord]) -> Statistics:
    """Count all images, one at a time."""
    out = Statistics()
    for image in images:
        out.add(image)
    return out


def _bin(value: float) -> int:
    """The bin of a fraction; 1 belongs to the last one."""
    return min(max(int(value * BINS), 0), BINS - 1)
