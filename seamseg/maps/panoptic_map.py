"""Panoptic maps, their segments and classes; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

VOID = 255
"""Category index of void pixels."""


@dataclass(frozen=True)
class Segment:
    """One segment of a panoptic map.

    `category` is the dense class index (stuff first), `score` None for stuff, `area` in pixels, `box` as
    `(y0, x0, y1, x1)`; `iscrowd` marks a group of things without separate instances.
    """

    id: int
    category: int
    isthing: bool
    score: float | None
    area: int
    box: tuple[float, float, float, float]
    iscrowd: bool = False


@dataclass(frozen=True)
class PanopticResult:
    """A panoptic map at the original size of the image: `id_map` is `H x W` int32 (0 void), `segments` has its ids."""

    id_map: np.ndarray
    segments: list[Segment]

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the map."""
        return int(self.id_map.shape[0]), int(self.id_map.shape[1])


VOID_ID = 0
"""Id of pixels without a segment."""


def class_map_result(classes: np.ndarray) -> PanopticResult:
    """Convert a class map `H x W` (255 void) to a map with one segment for each class, as of stuff.

    The box of each segment is the whole map.
    """
    present, counts = np.unique(classes, return_counts=True)
    box = (0, 0, int(classes.shape[0]), int(classes.shape[1]))
    segments = [Segment(int(c) + 1, int(c), False, None, int(n), box) for c, n in zip(present, counts) if c != VOID]
    id_map = classes.astype(np.int32)
    id_map += 1
    id_map[classes == VOID] = VOID_ID
    return PanopticResult(id_map, segments)


@dataclass(frozen=True)
class SegmentInfo:
    """An annotated segment.

    `category` is the dense class index; `area`, annotated, is in pixels, may be fractional, None if unknown.
    """

    id: int
    category: int
    iscrowd: bool = False
    area: float | None = None
    score: float | None = None


SegmentLike: TypeAlias = Segment | SegmentInfo
Segments: TypeAlias = Sequence[SegmentLike]


@dataclass(frozen=True)
class ClassInfo:
    """A class: name, id in reports (`category_id` in COCO files) and whether it is a thing."""

    name: str
    id: int
    isthing: bool
