"""Nearest-neighbour resizing of id maps, pixel for pixel as Pillow does it."""

from __future__ import annotations

import numpy as np

_ROWS = 128
"""Rows that are resized at a time: beside the result nothing is as large as an image."""


def nearest_index(have: int, wanted: int) -> np.ndarray:
    """The input pixel that each of `wanted` output pixels along an axis of `have` shows: `floor((i + .5) * scale)`."""
    if have < 1 or wanted < 1:
        raise ValueError(f"nearest_index: sizes must be positive, got {have} and {wanted}")
    # a running sum, as in Pillow: where a centre falls between two pixels its rounding decides
    steps = np.full(wanted, have / wanted)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(np.intp), have - 1)


def resize_nearest(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize the last two axes.

    Parameters
    ----------
    ids : `... x H x W` of any dtype
    size : `(height, width)` of the result
    """
    rows, columns = (nearest_index(have, wanted) for have, wanted in zip(ids.shape[-2:], size))
    result = np.empty((*ids.shape[:-2], *size), ids.dtype)
    for start in range(0, size[0], _ROWS):
        here = slice(start, start + _ROWS)
        result[..., here, :] = ids.take(rows[here], axis=-2).take(columns, axis=-1)
    return result
