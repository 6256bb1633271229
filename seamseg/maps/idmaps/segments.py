"""From detections and a class map to a map of ids, resizing, and from ids to rows of images; numpy or C, no torch.

See docs/contract.md, section 4 "Fusion". The operators on tensors are :mod:`seamseg.ops.labels`. All functions raise
ValueError for arguments of another type or shape.
"""

from __future__ import annotations

import operator

import numpy as np

from seamseg.maps.idmaps import library, reference

Region = tuple[int, int, int, int]
"""Position of a crop: `(y0, x0, y1, x1)`."""

BAND_BYTES = 1 << 23
"""About as many bytes of an image are made at a time, where it is not needed as a whole."""
_ROWS = 128
"""Rows resized at a time, which bounds the temporary memory."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` as float32; it is computed in float64, so that all machines agree on its bits."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def paste_masks(
    ids: np.ndarray, masks: np.ndarray, boxes: np.ndarray, overlap_threshold: float, keep_empty: bool = False
) -> np.ndarray:
    """Paste instances one after the other, each onto the pixels still free; ids are numbered from 1.

    `ids`, `H x W` int32, 0 where free, is written in place; `masks` are `K x h x w` float32 probabilities, best score
    first, and `boxes` `K x 4` float32, in image pixels. An instance is dropped if others have taken more than the
    fraction `overlap_threshold` of its pixels, or if it has none, unless `keep_empty`.

    Returns whether each instance got an id, `K` bool.
    """
    _require("paste_masks", "ids", ids, np.int32, 2)
    _require("paste_masks", "masks", masks, np.float32, 3)
    _require("paste_masks", "boxes", boxes, np.float32, 2, (len(masks), 4))
    if library.functions is None:
        return reference.paste_masks(ids, masks, boxes, overlap_threshold, keep_empty)
    target, kept = np.require(ids, None, ("C", "A")), np.zeros(len(masks), bool)
    library.call("paste_masks", target, *ids.shape, masks, boxes, *masks.shape, overlap_threshold, keep_empty, kept)
    if target is not ids:
        ids[:] = target
    return kept


def paste_mask(mask: np.ndarray, box: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, Region]:
    """Return the pixels of one instance in an image of `(height, width)`: a bool crop, and its region.

    `mask` is `h x w` float32 probabilities, `box` `4` float32, in image pixels.
    """
    _require("paste_mask", "mask", mask, np.float32, 2)
    _require("paste_mask", "box", box, np.float32, 1, (4,))
    if library.functions is None:
        return reference.paste_mask(mask, box, size)
    region = np.zeros(4, np.int64)
    library.call("paste_region", box, *mask.shape, *size, region)
    y0, x0, y1, x1 = region.tolist()
    crop = np.zeros((y1 - y0, x1 - x0), bool)
    if crop.size:
        library.call("paste_mask", mask, box, *mask.shape, *size, crop)
    return crop, (y0, x0, y1, x1)


def count_classes(classes: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
    """Count the pixels of each class of a map `H x W` uint8, only where an id map is 0 if it is given: `256` int64."""
    _require("count_classes", "classes", classes, np.uint8, 2)
    if ids is not None:
        _require("count_classes", "ids", ids, np.int32, 2, classes.shape)
    if library.functions is None:
        return np.bincount((classes if ids is None else classes[ids == 0]).ravel(), minlength=256)
    counts = np.zeros(256, np.int64)
    library.call("count_classes", classes, ids, classes.size, counts)
    return counts


def fill_free(ids: np.ndarray, classes: np.ndarray, id_of_class: np.ndarray) -> None:
    """Set every free pixel of an id map `H x W` int32 to the id of its class, of `256` int32; 0 leaves it free."""
    _require("fill_free", "classes", classes, np.uint8, 2)
    _require("fill_free", "ids", ids, np.int32, 2, classes.shape)
    _require("fill_free", "id_of_class", id_of_class, np.int32, 1, (256,))
    if library.functions is None:
        np.copyto(ids, id_of_class[classes], where=ids == 0)
        return
    target = np.require(ids, None, ("C", "A"))
    library.call("fill_free", target, classes, classes.size, id_of_class)
    if target is not ids:
        ids[:] = target


def areas_and_boxes(ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Measure the ids below `n` of a map `H x W` int32.

    Returns areas in pixels, `n` int64, and boxes `(y0, x0, y1, x1)`, `n x 4` float32, -1 for ids that are absent.
    """
    _require("areas_and_boxes", "ids", ids, np.int32, 2)
    if library.functions is None:
        return reference.areas_and_boxes(ids, n)
    areas, boxes = np.zeros(n, np.int64), np.zeros((n, 4), np.float32)
    library.call("segments", ids, *ids.shape, n, areas, boxes)
    return areas, boxes


def overlay(
    image: np.ndarray,
    ids: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray | None,
    colors: np.ndarray,
    outlined: np.ndarray,
    share: int | None,
) -> np.ndarray:
    """Blend rows of an image with the colours of an id map, and outline instances in white: `h x w x 3` uint8.

    Parameters
    ----------
    image : `h x w x 3` uint8, some or all rows of the image
    ids : `H x W` int32, the whole map; ids that are negative or not below `K` are drawn as 0
    rows, columns : int64, the row of the map that each row of `image` shows, and the column that each column shows;
        None for the same columns
    colors : `K x 3` uint8, of each id
    outlined : `K` bool, whether each id is outlined; id 0 never is
    share : share of the colours in 256, rounded to the nearest; None for the mean, rounded down
    """
    (height, width), (map_height, map_width), count = image.shape[:2], ids.shape, len(colors)
    if columns is None and map_width != width:
        raise ValueError(f"overlay: ids have {map_width} columns and the image {width}: columns are needed")
    _require("overlay", "image", image, np.uint8, 3, (height, width, 3))
    _require("overlay", "ids", ids, np.int32, 2)
    _require("overlay", "colors", colors, np.uint8, 2, (count, 3))
    _require("overlay", "outlined", outlined, bool, 1, (count,))
    for name, index, size, most in (("rows", rows, height, map_height), ("columns", columns, width, map_width)):
        if index is not None:
            _require("overlay", name, index, np.int64, 1, (size,))
            if size and not 0 <= index.min() <= index.max() < most:
                raise ValueError(f"overlay: {name} must be from 0 to {most - 1}, got {index.min()} to {index.max()}")
    if not count or (share is not None and not 0 <= operator.index(share) <= 256):
        raise ValueError(f"overlay: id 0 needs a colour, and share must be 0 to 256, got {count} colours and {share}")
    if image.size == 0:
        return np.empty_like(image)
    if library.functions is None:
        return reference.overlay(image, ids, rows, columns, colors, outlined, share)
    drawn, opacity = np.empty(image.shape, np.uint8), -1 if share is None else share
    maps = (image, *image.shape[:2], ids, *ids.shape)
    library.call("overlay", *maps, rows, columns, colors, outlined, count, opacity, drawn)
    return drawn


def png_rows(ids: np.ndarray, above: np.ndarray | None, values: np.ndarray | None) -> np.ndarray:
    """Make filtered rows of a PNG of ids as colours, R + 256 G + 65536 B, `h x (3 W + 1)` uint8 with their filters.

    `ids`, `h x W` int32, are some or all rows of a map, and `above`, `W` int32, the row above them, None for the first
    rows. `values` are the values of the ids, `K` uint32 below 2^24, 0 for ids that are negative or not below `K`; None
    for the ids themselves.
    """
    _require("png_rows", "ids", ids, np.int32, 2)
    if above is not None:
        _require("png_rows", "above", above, np.int32, 1, (ids.shape[1],))
    if values is not None:
        _require("png_rows", "values", values, np.uint32, 1)
    if library.functions is None:
        return reference.png_rows(ids, above, values)
    height, width = ids.shape
    filtered = np.empty((height, 3 * width + 1), np.uint8)
    library.call("png_rows", ids, above, height, width, values, 0 if values is None else values.size, filtered)
    return filtered


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


def _require(
    function: str, name: str, value: np.ndarray, dtype: type, dims: int, shape: tuple[int, ...] | None = None
) -> None:
    if value.dtype != dtype or value.ndim != dims or (shape is not None and value.shape != shape):
        wanted = f"{dims} dimensions" if shape is None else f"the shape {shape}"
        raise ValueError(f"{function}: {name} must be {np.dtype(dtype)} with {wanted}, got {value.shape} {value.dtype}")
