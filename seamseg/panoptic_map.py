"""Panoptic maps and their segments: values that need no torch, which `seamseg.structures` offers too."""

from __future__ import annotations

from dataclasses import dataclass

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
