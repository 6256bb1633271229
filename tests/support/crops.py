"""Images that a crop is drawn for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seamseg.data.crops import CropImage


def of_size(height: int, width: int) -> CropImage:
    """An image of a size without any segment."""
    return of_mask(np.zeros((1, height, width), np.int32), [255], [0])


def of_mask(
    mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], stuff: int = 2, category: int | None = None
) -> CropImage:
    """An image with its ids, drawn for a class or not."""
    return CropImage(mask.shape[1:], cat, iscrowd, stuff, category, lambda: mask)
