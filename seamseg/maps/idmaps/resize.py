"""Nearest-neighbour resizing of id maps, identical to Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np

from seamseg.maps.idmaps.segments import areas_and_boxes

_ROWS = 128
"""Rows resized at a time, which bounds the temporary memory."""


def nearest_index(old: int, new: int) -> np.ndarray:
    """Return the input pixel of each output pixel along an axis, `floor((i + .5) * old / new)`."""
    if old < 1 or new < 1:
        raise ValueError(f"nearest_index: sizes must be positive, got {old} and {new}")
    # a running sum, as in Pillow: its rounding decides where a centre is between two pixels
    steps = np.full(new, old / new)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(np.intp), old - 1)


def resize_nearest(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize the last two axes of an array `... x H x W` of any dtype to `(height, width)`."""
    rows, columns = (nearest_index(old, new) for old, new in zip(ids.shape[-2:], size))
    result = np.empty((*ids.shape[:-2], *size), ids.dtype)
    for start in range(0, size[0], _ROWS):
        block = slice(start, start + _ROWS)
        result[..., block, :] = ids.take(rows[block], axis=-2).take(columns, axis=-1)
    return result


class ResizedIds:
    """The map of :func:`resize_nearest`, of which rows are made where they are needed: `map[y]`, `map[start:stop]`.

    `ids` are `h x w` int32, not negative, and `(height, width)` is not below their size.
    """

    ndim = 2

    def __init__(self, ids: np.ndarray, size: tuple[int, int]) -> None:
        if size[0] < ids.shape[0] or size[1] < ids.shape[1]:
            raise ValueError(f"ResizedIds: the size must not be below that of the ids {ids.shape}, got {size}")
        self.ids, self.shape, self.dtype = ids, (int(size[0]), int(size[1])), ids.dtype

    @property
    def size(self) -> int:
        """Number of pixels."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def index(self) -> tuple[np.ndarray, np.ndarray]:
        """The row of `ids` that each row shows, and the column that each column shows."""
        (height, width), (new_height, new_width) = self.ids.shape, self.shape
        return nearest_index(height, new_height), nearest_index(width, new_width)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[y] for y in range(len(self)))

    def __getitem__(self, at: int | slice) -> np.ndarray:
        rows, columns = self.index
        found: np.ndarray = self.ids[rows[at]].take(columns, axis=-1)
        return found

    def dense(self) -> np.ndarray:
        """Return the map as an array."""
        return resize_nearest(self.ids, self.shape)

    def areas_and_boxes(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Measure the ids, all below `n`, see :func:`seamseg.maps.idmaps.segments.areas_and_boxes`."""
        heights, widths = (np.bincount(i, minlength=old) for i, old in zip(self.index, self.ids.shape))
        areas = np.zeros(n, np.int64)
        for start in range(0, len(heights), _ROWS):
            block = slice(start, start + _ROWS)
            pixels = np.outer(heights[block], widths).ravel()
            areas += np.bincount(self.ids[block].ravel(), pixels, n).astype(np.int64)  # floats count exactly to 2^53
        _, boxes = areas_and_boxes(self.ids, n)
        for axis, index in enumerate(self.index):
            found = np.searchsorted(index, boxes[:, axis::2])
            boxes[:, axis::2] = np.where(boxes[:, axis::2] < 0, -1, found)
        return areas, boxes


IdMap: TypeAlias = "np.ndarray | ResizedIds"
"""An id map, `H x W` integer, of which rows are needed."""
