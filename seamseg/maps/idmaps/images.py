"""From id maps to rows of images, in numpy or the C library: overlays, and the filtered rows of a panoptic PNG."""

from __future__ import annotations

import operator

import numpy as np

from seamseg.maps.idmaps import library, reference

BAND_BYTES = 1 << 23
"""About as many bytes of an image are made at a time, where it is not needed as a whole."""


def overlay(
    image: np.ndarray,
    ids: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray | None,
    colors: np.ndarray,
    outlined: np.ndarray,
    share: int | None,
) -> np.ndarray:
    """Blend rows of an image with the colours of an id map, and draw the outlines of instances in white.

    Parameters
    ----------
    image : `h x w x 3` uint8, some or all rows of the image
    ids : `H x W` int32, the whole map; ids that are negative or not below `K` are drawn as 0
    rows, columns : int64, the row of the map that each row of `image` shows, and the column that each column shows;
        None for the same columns
    colors : `K x 3` uint8, of each id
    outlined : `K` bool, whether each id is outlined; id 0 never is
    share : share of the colours in 256, rounded to the nearest; None for the mean, rounded down

    Returns
    -------
    `h x w x 3` uint8

    Raises
    ------
    ValueError
        if an argument has another type, shape or range
    """
    (height, width), (map_height, map_width), count = image.shape[:2], ids.shape, len(colors)
    if columns is None and map_width != width:
        raise ValueError(f"overlay: ids have {map_width} columns and the image {width}: columns are needed")
    _require("overlay", "image", image, np.uint8, (height, width, 3))
    _require("overlay", "ids", ids, np.int32, ids.shape)
    _require("overlay", "colors", colors, np.uint8, (count, 3))
    _require("overlay", "outlined", outlined, bool, (count,))
    _require_index("rows", rows, height, map_height)
    if columns is not None:
        _require_index("columns", columns, width, map_width)
    if not count or (share is not None and not 0 <= operator.index(share) <= 256):
        raise ValueError(f"overlay: id 0 needs a colour, and share must be 0 to 256, got {count} colours and {share}")
    if image.size == 0:
        return np.empty_like(image)
    return (library.functions or reference).overlay(image, ids, rows, columns, colors, outlined, share)


def png_rows(ids: np.ndarray, above: np.ndarray | None, values: np.ndarray | None) -> np.ndarray:
    """Make filtered rows of a PNG of ids as colours, R + 256 G + 65536 B.

    Parameters
    ----------
    ids : `h x W` int32, some or all rows of a map
    above : `W` int32, the row above them; None for the first rows
    values : `K` uint32 below 2^24, the value of each id, 0 for ids that are negative or not below `K`; None for the
        ids themselves

    Returns
    -------
    `h x (3 W + 1)` uint8, each row after the number of its filter

    Raises
    ------
    ValueError
        if an argument has another type or shape
    """
    _, width = ids.shape
    _require("png_rows", "ids", ids, np.int32, ids.shape)
    if above is not None:
        _require("png_rows", "above", above, np.int32, (width,))
    if values is not None:
        _require("png_rows", "values", values, np.uint32, (len(values),))
    return (library.functions or reference).png_rows(ids, above, values)


def _require(function: str, name: str, value: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if value.dtype != dtype or value.shape != shape:
        raise ValueError(f"{function}: {name} must be {shape} {np.dtype(dtype)}, got {value.shape} {value.dtype}")


def _require_index(name: str, index: np.ndarray, size: int, most: int) -> None:
    _require("overlay", name, index, np.int64, (size,))
    if size and not 0 <= index.min() <= index.max() < most:
        raise ValueError(f"overlay: {name} must be from 0 to {most - 1}, got {index.min()} to {index.max()}")
