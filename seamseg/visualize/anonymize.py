"""Photos in which people, vehicles or anything else can no longer be recognised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from seamseg.visualize.region import Region, Style

CELLS = 8
"""Averages along the longer side of a region: of a person who stands, less than one for each way across the face."""
LEAST_CELL = 8
"""Side of the smallest averages in pixels, or :data:`LEAST_PART` of the photo's longer side if that is more."""
LEAST_PART = 1 / 128
MARGIN = 0.05
"""What is hidden around a region, as part of its size; one cell of a mask of 28 x 28 is 0.036."""


def anonymize(
    photo: np.ndarray, regions: Iterable[Region], style: Style = "blur", cells: int = CELLS, margin: float = MARGIN
) -> np.ndarray:
    """Hide regions of a photo.

    Each region with a margin around it becomes a coarse grid of averages, at most `cells` along its longer side, each
    of them mixed with its neighbours. Nothing else of its pixels is left, so there is no filter to turn round, whatever
    the size of the region. Where regions overlap the coarser one counts. Beyond the margin the picture fades back into
    the photo.

    Parameters
    ----------
    photo : uint8 `H x W x 3`; is not changed
    regions : of any shape; they may overlap and reach beyond the photo. Each is coarse by its own size: hand in one
        region a person, and what is no whole object by :func:`clusters`
    style : "blur" (the averages flow into one another) or "pixels" (squares)
    cells : averages along the longer side, at least 1
    margin : part of the region's size, at least 0; two pixels are always added

    Returns
    -------
    uint8 `H x W x 3`

    Raises
    ------
    ValueError
        if an argument is out of range
    """
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
        raise ValueError(f"anonymize: the photo must be H x W x 3 uint8, it is {photo.shape} {photo.dtype}")
    if cells < 1 or not margin >= 0 or style not in ("blur", "pixels"):
        raise ValueError(f'anonymize: cells {cells}, margin {margin}, style {style}; see "Parameters"')
    from .hiding import hide  # which needs torch, unlike the palettes beside it that a report takes

    out = photo.copy()
    boxed = [(region, _box(region, (photo.shape[0], photo.shape[1]))) for region in regions]
    least = max(LEAST_CELL, math.ceil(LEAST_PART * max(photo.shape)))
    work = [(max(least, _cell(region, box, cells)), region, box) for region, box in boxed if box is not None]
    # the coarsest last: a finer one drawn over it would bring details back
    for cell, region, box in sorted(work, key=lambda item: item[0]):
        hide(photo, out, region, box, style, cell, margin)
    return out


def clusters(mask: np.ndarray, cells: int = 64) -> Iterator[Region]:
    """Parts of a mask that lie apart, such as pixels of a class that belong to no detection.

    Parts closer than a cell count as one.

    Parameters
    ----------
    mask : bool `H x W`
    cells : along the longer side of the mask
    """
    if not mask.any():
        return
    side = max(1, math.ceil(max(mask.shape) / cells))
    firsts = (np.arange(0, length, side) for length in mask.shape)
    coarse = mask
    for axis, first in enumerate(firsts):
        coarse = np.logical_or.reduceat(coarse, first, axis=axis)
    labels = _connected(coarse)
    for label in np.unique(labels[labels > 0]):
        own = labels == label
        (y0, y1), (x0, x1) = (_ends(own.any(1 - axis)) for axis in (0, 1))
        near = own[y0:y1, x0:x1].repeat(side, axis=0).repeat(side, axis=1)
        crop = mask[y0 * side : y1 * side, x0 * side : x1 * side]
        crop = crop & near[: crop.shape[0], : crop.shape[1]]
        (top, bottom), (left, right) = (_ends(crop.any(1 - axis)) for axis in (0, 1))
        yield Region(crop[top:bottom, left:right], (y0 * side + top, x0 * side + left), part=True)


def _ends(line: np.ndarray) -> tuple[int, int]:
    """The first true element, and one more than the last."""
    found = np.flatnonzero(line)
    return int(found[0]), int(found[-1]) + 1


def _connected(cells: np.ndarray) -> np.ndarray:
    """A number for each group of neighbouring cells (also over corners), 0 elsewhere: the largest index spreads."""
    labels = np.where(cells, np.arange(1, cells.size + 1).reshape(cells.shape), 0)
    while True:
        around = np.pad(labels, 1)
        wider = np.maximum(np.maximum(around[:-2], around[1:-1]), around[2:])
        wider = np.maximum(np.maximum(wider[:, :-2], wider[:, 1:-1]), wider[:, 2:])
        spread = np.where(cells, wider, 0)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def _box(region: Region, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """`(y0, x0, y1, x1)` of the pixels of a region that lie in the photo; None without any."""
    rows, columns = np.flatnonzero(region.mask.any(1)), np.flatnonzero(region.mask.any(0))
    if not len(rows):
        return None
    (y, x), (height, width) = region.corner, size
    y0, y1 = max(0, y + int(rows[0])), min(height, y + int(rows[-1]) + 1)
    x0, x1 = max(0, x + int(columns[0])), min(width, x + int(columns[-1]) + 1)
    return None if y0 >= y1 or x0 >= x1 else (y0, x0, y1, x1)


def _cell(region: Region, box: tuple[int, int, int, int], cells: int) -> int:
    """Side of the averages of a region in pixels."""
    longest, shortest = max(box[2] - box[0], box[3] - box[1]), min(box[2] - box[0], box[3] - box[1])
    # a row of people is long, but each of them is as high as the row
    return math.ceil(min(longest / min(cells, 3), shortest) if region.part else longest / cells)
