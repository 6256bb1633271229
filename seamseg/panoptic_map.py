"""Panoptic maps and their segments: values that need no torch, which `seamseg.structures` offers too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

VOID = 255
"""Category index of void pixels."""


@dataclass(frozen=True)
class Segment:
    """One segment of a panoptic map.

    `category` is the dense class index (stuff first), `score` None for stuff, `area` in pixels, `box` as
    `(y0, x0, y1, x1)`; `iscrowd` marks a group of things that could not be told apart.
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
    """A panoptic map at the image's own size: `id_map` is `H x W` int32 (0 void), `segments` describe its ids."""

    id_map: np.ndarray
    segments: list[Segment]

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the map"""
        return int(self.id_map.shape[0]), int(self.id_map.shape[1])


VOID_ID = 0
"""Id of pixels that belong to no segment."""


class SegmentLike(Protocol):
    """What is known of a segment; `area` None means: count it. `score` is for reports only."""

    @property
    def id(self) -> int: ...
    @property
    def category(self) -> int: ...
    @property
    def iscrowd(self) -> bool: ...
    @property
    def area(self) -> float | None: ...
    @property
    def score(self) -> float | None: ...


@dataclass(frozen=True)
class SegmentInfo:
    """A segment as the annotations tell it.

    `category` is the dense class index; `area` in pixels if it is known, maybe with a fraction, as stated.
    """

    id: int
    category: int
    iscrowd: bool = False
    area: float | None = None
    score: float | None = None


@dataclass(frozen=True)
class ClassInfo:
    """A class: its name, the id that reports show (its `category_id` in COCO files) and whether it is a thing."""

    name: str
    id: int
    isthing: bool


class ClassTable(Protocol):
    """The part of a data set's metadata that tells the classes, stuff first."""

    @property
    def num_stuff(self) -> int: ...
    @property
    def num_thing(self) -> int: ...
    @property
    def categories(self) -> list[str]: ...
    @property
    def original_ids(self) -> list[int]: ...


def category_ids(metadata: ClassTable) -> list[int]:
    """The `category_id` of each class in COCO files: its id in the original data set; index + 1 if two are equal."""
    original = [int(i) for i in metadata.original_ids]
    count = metadata.num_stuff + metadata.num_thing
    if len(original) == count and len(set(original)) == count:
        return original
    return list(range(1, count + 1))


def class_infos(metadata: ClassTable) -> list[ClassInfo]:
    """Name, id and kind of each class of a data set."""
    return [
        ClassInfo(name, identity, index >= metadata.num_stuff)
        for index, (name, identity) in enumerate(zip(metadata.categories, category_ids(metadata)))
    ]
