"""Hide everything in an image by which objects of some classes could be recognised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.pasting import paste_detections
from seamseg.maps.predictions import ArrayPrediction
from seamseg.utils.errors import InputError

Style = Literal["blur", "pixels"]

CELLS = 8
"""Cells along the longer side of a region: for a standing person a cell is larger than the face."""
LEAST_CELL = 8
"""Minimum side of a cell in pixels, or :data:`LEAST_PART` of the image's longer side if that is larger."""
LEAST_PART = 1 / 128
MARGIN = 0.05
"""Margin around a region, relative to its size, besides two pixels; one cell of a mask of 28 x 28 is 0.036."""
LEAST_SCORE = 0.2
"""Minimum score of hidden detections, which may be absent from the panoptic map: to hide too much costs little."""

NOT_LOCATED = "a classifier does not say where in the image a class is: nothing can be hidden"


@dataclass(frozen=True)
class Region:
    """Pixels to hide: where `mask`, bool `h x w`, is true, from `corner` `(y, x)` in the image on.

    `part` marks what may be a part of an object only, such as a face: it is made coarser.
    """

    mask: np.ndarray
    corner: tuple[int, int] = (0, 0)
    part: bool = False


def hide_classes(
    rgb: np.ndarray,
    result: PanopticResult | None,
    prediction: ArrayPrediction | None,
    classes: Sequence[int],
    num_stuff: int,
    style: Style = "blur",
    least_score: float = LEAST_SCORE,
) -> np.ndarray:
    """Hide some classes in an image `H x W x 3`, see :func:`private_regions`.

    Without a panoptic map, for `result` None, the detections of the prediction are hidden, their masks or else boxes,
    and the pixels of its class map. InputError if style or score are none, or the network does not locate classes.
    """
    if result is None:
        result = PanopticResult(np.zeros(rgb.shape[:2], np.int32), [])
    if style not in ("blur", "pixels"):
        raise InputError(f"style must be blur or pixels, not {style!r}")
    if not 0 <= least_score <= 1:
        raise InputError(f"least_score must be between 0 and 1, not {least_score}")
    if prediction is not None and prediction.logits is not None:
        raise InputError(NOT_LOCATED)
    return anonymize(rgb, private_regions(result, prediction, classes, num_stuff, least_score), style)


def private_regions(
    result: PanopticResult,
    prediction: ArrayPrediction | None,
    classes: Sequence[int],
    num_stuff: int,
    least_score: float = LEAST_SCORE,
) -> Iterator[Region]:
    """Iterate over the regions that may belong to some classes (indices, stuff first), one for each object.

    These are the segments of the map; detections that the map omits, because their score is low or others cover them;
    and pixels to which the semantic head assigns such a class without a detected object.
    """
    chosen = set(classes)
    rest = np.zeros(result.size, bool)
    covered = np.zeros(result.size, bool)
    for segment in result.segments:
        if segment.category not in chosen:
            continue
        y0, x0, y1, x1 = (int(v) for v in segment.box)
        mask = result.id_map[y0:y1, x0:x1] == segment.id
        if segment.isthing and not segment.iscrowd:
            covered[y0:y1, x0:x1] |= mask
            yield Region(mask, (y0, x0))
        else:
            rest[y0:y1, x0:x1] |= mask
    if prediction is not None:
        prediction = prediction.on_cpu()
        for found in paste_detections(prediction, result.size):
            if found.category + num_stuff not in chosen or found.score < least_score:
                continue
            mask, (y, x) = found.crop, found.corner
            if mask is None:  # its box
                y, x = max(0, int(found.box[0])), max(0, int(found.box[1]))
                y1, x1 = (min(side, math.ceil(end)) for side, end in zip(result.size, found.box[2:]))
                mask = np.ones((max(0, y1 - y), max(0, x1 - x)), bool)
            region, (height, width) = Region(mask, (y, x)), mask.shape
            covered[y : y + height, x : x + width] |= region.mask
            yield region
        if prediction.semantic is not None:
            rest |= resize_nearest(np.isin(prediction.semantic, list(chosen)), result.size)
    yield from clusters(rest & ~covered)


def clusters(mask: np.ndarray, cells: int = 64) -> Iterator[Region]:
    """Split a mask, bool `H x W`, into separate parts, such as pixels of a class that belong to no detection.

    Parts closer than a cell count as one; there are `cells` along the longer side.
    """
    if not mask.any():
        return
    side = max(1, math.ceil(max(mask.shape) / cells))
    coarse = mask
    for axis, length in enumerate(mask.shape):
        coarse = np.logical_or.reduceat(coarse, np.arange(0, length, side), axis=axis)
    labels = _connected(coarse)
    for label in np.unique(labels[labels > 0]):
        own = labels == label
        (y0, y1), (x0, x1) = _ends(own.any(1)), _ends(own.any(0))
        near = own[y0:y1, x0:x1].repeat(side, axis=0).repeat(side, axis=1)
        crop = mask[y0 * side : y1 * side, x0 * side : x1 * side]
        crop = crop & near[: crop.shape[0], : crop.shape[1]]
        (top, bottom), (left, right) = _ends(crop.any(1)), _ends(crop.any(0))
        yield Region(crop[top:bottom, left:right], (y0 * side + top, x0 * side + left), part=True)


def _ends(line: Any) -> tuple[int, int]:
    """Return the first true element, and one more than the last."""
    found = np.flatnonzero(line)
    return int(found[0]), int(found[-1]) + 1


def _connected(cells: np.ndarray) -> np.ndarray:
    """Label connected cells (8-neighbourhood), 0 elsewhere, by spreading the largest index."""
    labels = np.where(cells, np.arange(1, cells.size + 1).reshape(cells.shape), 0)
    while True:
        around = np.pad(labels, 1)
        wider = np.maximum(np.maximum(around[:-2], around[1:-1]), around[2:])
        wider = np.maximum(np.maximum(wider[:, :-2], wider[:, 1:-1]), wider[:, 2:])
        spread = np.where(cells, wider, 0)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def anonymize(image: np.ndarray, regions: Iterable[Region], style: Style = "blur") -> np.ndarray:
    """Hide regions of an image, uint8 `H x W x 3`; return another one.

    Each region with a margin around it becomes a coarse grid of averages, at most :data:`CELLS` along its longer side,
    each mixed with its neighbours. Nothing else of its pixels remains, so there is no filter to invert. Where regions
    overlap the coarser one is used. Beyond the margin the result fades into the image. The style "blur" interpolates
    the averages, "pixels" shows squares.
    """
    out: np.ndarray = image.copy()
    least = max(LEAST_CELL, math.ceil(LEAST_PART * max(image.shape)))
    boxed = [(region, _box(region, image.shape)) for region in regions]
    work = []
    for region, box in boxed:
        if box is not None:
            shortest, longest = sorted((box[2] - box[0], box[3] - box[1]))
            # in a row of people each is as high as the row
            cell = math.ceil(min(longest / 3, shortest) if region.part else longest / CELLS)
            work.append((max(least, cell), region, box))
    # the coarsest last: a finer one on top would restore details
    for cell, region, box in sorted(work, key=lambda item: item[0]):
        _hide(image, out, region, box, cell, style)
    return out


def _box(region: Region, shape: Sequence[int]) -> tuple[int, int, int, int] | None:
    """Return the bounding box `(y0, x0, y1, x1)` of a region within the image; None if it is empty."""
    if not region.mask.any():
        return None
    (y0, y1), (x0, x1), (y, x) = _ends(region.mask.any(1)), _ends(region.mask.any(0)), region.corner
    y0, y1, x0, x1 = max(0, y + y0), min(shape[0], y + y1), max(0, x + x0), min(shape[1], x + x1)
    return None if y0 >= y1 or x0 >= x1 else (y0, x0, y1, x1)


def _hide(
    image: np.ndarray, out: np.ndarray, region: Region, box: tuple[int, int, int, int], cell: int, style: Style
) -> None:
    """Draw a region of an image into `out` in averages over cells of `cell` pixels."""
    (y0, x0, y1, x1), (height, width) = box, image.shape[:2]
    reach = 2 + math.ceil(MARGIN * max(y1 - y0, x1 - x0))
    fade = max(1, reach // 2)
    wide = reach + 2 * fade
    top, left, bottom, right = max(0, y0 - wide), max(0, x0 - wide), min(height, y1 + wide), min(width, x1 + wide)

    mask = np.zeros((bottom - top, right - left), np.float32)
    inside = region.mask[y0 - region.corner[0] : y1 - region.corner[0], x0 - region.corner[1] : x1 - region.corner[1]]
    mask[y0 - top : y1 - top, x0 - left : x1 - left] = inside
    # the mean of radius `fade` over the mask dilated by reach + fade is exactly 1 within reach: nothing shines through
    solid = _dilate(mask, reach)
    alpha = _mean(_dilate(mask, reach + fade), fade)
    alpha[solid > 0] = 1.0

    hidden = _coarse(image[top:bottom, left:right].astype(np.float32), solid, cell, style)
    behind = out[top:bottom, left:right].astype(np.float32)
    mixed = np.where(solid[..., None] > 0, hidden, behind + alpha[..., None] * (hidden - behind))
    out[top:bottom, left:right] = (mixed + np.float32(0.5)).clip(0, 255).astype(np.uint8)


def _coarse(pixels: np.ndarray, mask: np.ndarray, cell: int, style: Style) -> np.ndarray:
    """Return the averages of the masked pixels over cells, at the size of the pixels, `h x w x 3` float32."""
    height, width = mask.shape
    rows, columns = -(-height // cell), -(-width // cell)
    padding = ((0, rows * cell - height), (0, columns * cell - width), (0, 0))
    weighted = np.pad(np.concatenate((pixels * mask[..., None], mask[..., None]), axis=2), padding)
    sums = weighted.reshape(rows, cell, columns, cell, 4).sum((1, 3))
    # an average over few pixels at the rim would reveal them: each includes its neighbours, weighted by their pixels
    mixed = _blend_neighbours(sums)
    # cells without masked pixels are in the fading rim: they take the nearest colour
    while not (mixed[..., 3] > 0).all():
        mixed = np.where(mixed[..., 3:] > 0, mixed, _blend_neighbours(mixed))
    colours: np.ndarray = mixed[..., :3] / mixed[..., 3:]
    for axis in (0, 1):
        colours = colours.repeat(cell, axis=axis) if style == "pixels" else _interpolate(colours, cell, axis)
    return colours[:height, :width]


def _blend_neighbours(cells: np.ndarray) -> np.ndarray:
    """Sum each cell of `rows x columns x 4` and its eight neighbours, weighted 4, 2 and 1."""
    full = np.pad(cells, ((1, 1), (1, 1), (0, 0)))
    down = full[:-2] + 2 * full[1:-1] + full[2:]
    total: np.ndarray = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    return total


def _interpolate(values: np.ndarray, factor: int, axis: int) -> np.ndarray:
    """Enlarge an axis by bilinear interpolation between the centres of the cells; the first and last are extended."""
    length = values.shape[axis]
    where = ((np.arange(length * factor, dtype=np.float32) + np.float32(0.5)) / factor - np.float32(0.5)).clip(0)
    first = np.minimum(where.astype(np.intp), length - 1)
    second = np.minimum(first + 1, length - 1)
    share = (where - first).reshape([-1 if k == axis else 1 for k in range(values.ndim)]).astype(np.float32)
    between: np.ndarray = (1 - share) * values.take(first, axis) + share * values.take(second, axis)
    return between


def _dilate(mask: np.ndarray, radius: int) -> np.ndarray:
    """Dilate a mask by a square of `radius`."""
    return (_window_sums(mask, radius) > 0.5).astype(np.float32)


def _mean(mask: np.ndarray, radius: int) -> np.ndarray:
    """Return the mean over squares, with the border replicated."""
    full = np.pad(mask, radius, mode="edge")
    side = 2 * radius + 1
    return (_window_sums(full, radius)[radius:-radius, radius:-radius] / side**2).astype(np.float32)


def _window_sums(values: np.ndarray, radius: int) -> np.ndarray:
    """Return sums over squares of `2 * radius + 1`, by cumulative sums (float64, exact for integers)."""
    height, width = values.shape
    sums = np.pad(values.astype(np.float64), (radius + 1, radius)).cumsum(0).cumsum(1)
    side = 2 * radius + 1
    bottom, top = sums[side:], sums[:-side]
    found: np.ndarray = (bottom[:, side:] - bottom[:, :-side] - top[:, side:] + top[:, :-side])[:height, :width]
    return found
