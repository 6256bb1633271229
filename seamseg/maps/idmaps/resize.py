"""Nearest-neighbour resizing of id maps, identical to Pillow."""

from __future__ import annotations

import numpy as np

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
