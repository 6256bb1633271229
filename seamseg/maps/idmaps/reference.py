"""Reference implementation of `csrc/maps` in numpy, also used if it was not compiled; Pillow decodes PNGs then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BAND = 32
"""Rows of an image computed at a time, which bounds the temporary memory."""


def joint_histogram(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count pairs of labels; see :func:`seamseg.maps.idmaps.histogram.joint_histogram`, also for negative labels.

    Label maps consist of long runs, so only the starts of runs are sorted.
    """
    first, second = (x.reshape(-1).astype(np.int64) for x in (a, b))
    if first.size == 0:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    change = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    start = np.append(0, 1 + np.flatnonzero(change))
    length = np.diff(start, append=first.size)
    # pair the ranks of the labels, which cannot overflow
    left, left_rank = np.unique(first[start], return_inverse=True)
    right, right_rank = np.unique(second[start], return_inverse=True)
    keys, where = np.unique(left_rank * right.size + right_rank, return_inverse=True)
    counts = np.zeros(keys.size, np.int64)
    np.add.at(counts, where, length)
    return np.stack((left[keys // right.size], right[keys % right.size]), 1), counts


def paste_masks(
    ids: np.ndarray, masks: np.ndarray, boxes: np.ndarray, overlap_threshold: float, keep_empty: bool, first_id: int = 1
) -> np.ndarray:
    """See :func:`.segments.paste_masks`; for id maps of any integer type, and ids from `first_id` on."""
    number, kept = first_id, np.zeros(len(masks), bool)
    for k, (mask, box) in enumerate(zip(masks, boxes)):
        crop, (y0, x0, y1, x1) = paste_mask(mask, box, (ids.shape[0], ids.shape[1]))
        window = ids[y0:y1, x0:x1]
        free = crop & (window == 0)
        area, free_area = int(crop.sum()), int(free.sum())
        overlaps = area > 0 and (area - free_area) / area > overlap_threshold
        kept[k] = not overlaps and (free_area > 0 or keep_empty)
        if kept[k]:
            window[free] = number
            number += 1
    return kept


def paste_mask(
    mask: np.ndarray, box: np.ndarray, size: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """See :func:`seamseg.maps.idmaps.segments.paste_mask`.

    Products are computed in float64, where those of float32 are exact: rounding does not depend on the order of sums.
    """
    (top, bottom, rows, row_weights), (left, right, columns, column_weights) = (
        _paste_axis(box[axis], box[axis + 2], size[axis], mask.shape[axis]) for axis in (0, 1)
    )
    if bottom <= top or right <= left:
        return np.zeros((bottom - top, right - left), bool), (top, left, bottom, right)
    wide = mask.astype(np.float64)
    across = wide[:, columns[0]] * column_weights[0] + wide[:, columns[1]] * column_weights[1]
    across = across.astype(np.float32).astype(np.float64)
    down = across[rows[0]] * row_weights[0][:, None] + across[rows[1]] * row_weights[1][:, None]
    return down > 0.5, (top, left, bottom, right)


def _paste_axis(low: np.float32, high: np.float32, size: int, cells: int) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Return the pixels along an axis that a box can reach, the two cells that each reads, `2 x n`, and weights."""
    start, stop, span = 0, 0, float(high) - float(low)
    if np.isfinite(span) and span > 0 and high > 0 and low < size and cells > 0:
        # beyond half a cell outside the probability is below .5; one pixel more covers rounding
        start, stop = max(0, int(np.floor(low)) - 1), min(size, int(np.ceil(high)) + 1)
    with np.errstate(all="ignore"):
        narrow, scale = high - low, np.float32(cells)
        begin, end = -low / narrow * scale, (np.float32(size) - low) / narrow * scale
        centres = (np.arange(start, stop, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
        s = np.clip(np.nan_to_num(begin + centres * (end - begin), nan=-2.0), np.float32(-2), scale + np.float32(2))
        k = np.floor(s - np.float32(0.5))
        fraction = s - np.float32(0.5) - k
    taps = np.stack((k, k + 1)).astype(np.int64)
    weights = np.stack((1 - fraction, fraction)) * ((taps >= 0) & (taps < cells))
    return start, stop, taps.clip(0, max(cells - 1, 0)), weights.astype(np.float64)


def areas_and_boxes(ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """See :func:`seamseg.maps.idmaps.segments.areas_and_boxes`; runs of equal ids along the rows are few."""
    areas, boxes = np.zeros(n, np.int64), np.full((n, 4), -1, np.float32)
    if n == 0 or ids.size == 0:
        return areas, boxes
    width = ids.shape[1]
    start = np.flatnonzero(np.diff(ids, axis=1, prepend=ids[:, :1] - 1))
    length = np.diff(start, append=ids.size)
    found = ids.ravel()[start]
    known = (found >= 0) & (found < n)
    start, length, found = start[known], length[known], found[known]
    np.add.at(areas, found, length)
    low, high = np.full((n, 2), ids.size, np.int64), np.full((n, 2), -1, np.int64)
    y, x = np.divmod(start, width)
    np.minimum.at(low, found, np.stack((y, x), 1))
    np.maximum.at(high, found, np.stack((y + 1, x + length), 1))
    present = areas > 0
    boxes[present] = np.concatenate((low, high), 1)[present]
    return areas, boxes


@dataclass(frozen=True)
class Axis:
    """Each pixel of an axis as a weighted sum of consecutive cells.

    Attributes
    ----------
    first : `P` int32, the first cell of each pixel
    weights : `T x P` float32, of `T` cells from there on
    """

    first: np.ndarray
    weights: np.ndarray

    @staticmethod
    def of(cells: int, padded: int, valid: int, pixels: int) -> Axis:
        """Return the axis of an image with `pixels`, of which the network's input has `valid` and padding."""
        outer, outer_weights = (np.arange(pixels)[None], np.ones((1, pixels)))
        if pixels != valid:
            outer, outer_weights = _bilinear(valid, pixels)
        inner, inner_weights = _bilinear(cells, padded)
        taps = inner[:, outer].reshape(-1, pixels)
        weights = (inner_weights[:, outer] * outer_weights).reshape(-1, pixels)
        count = int((taps.max(0) - taps.min(0)).max()) + 1
        first = np.minimum(taps.min(0), cells - count)
        dense = np.zeros((count, pixels))
        np.add.at(dense, (taps - first, np.arange(pixels)), weights)
        return Axis(first.astype(np.int32), dense.astype(np.float32))


def _bilinear(cells: int, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two cells that each pixel of an axis lies between, `2 x P`, and their weights."""
    scale = np.float64(np.float32(cells / pixels))
    # rounded where torch rounds
    position = ((np.arange(pixels) + 0.5) * scale).astype(np.float32) - np.float32(0.5)
    position = position.clip(0)
    low = np.minimum(position.astype(np.int64), cells - 1)
    high = (position - low.astype(np.float32)).astype(np.float64)
    return np.stack((low, np.minimum(low + 1, cells - 1))), np.stack((1 - high, high))


def best_masks(logits: np.ndarray, scores: np.ndarray, rows: Axis, columns: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and `3 x K` areas, see :class:`seamseg.maps.idmaps.upsampled.BestMasks`."""
    numbers = np.empty((rows.first.size, columns.first.size), np.int16)
    areas = np.zeros((3, len(logits)), np.int64)
    for band, masks in _bands(logits, rows, columns):
        best, likely = np.full(numbers[band].shape, -1, np.float32), np.zeros(numbers[band].shape, bool)
        number_of_best = np.zeros(numbers[band].shape, np.int16)
        for k, x in enumerate(masks):
            value = scores[k] / (1 + _exp(np.minimum(-x, np.float32(87))))
            better, original = value > best, x >= 0
            best[better] = value[better]
            number_of_best[better] = k + 1
            likely[better] = original[better]
            areas[1, k] += np.count_nonzero(original)
        numbers[band] = number_of_best * likely
        for row, found in ((0, number_of_best), (2, numbers[band])):
            areas[row] += np.bincount(found.ravel(), minlength=len(logits) + 1)[1:]
    return numbers, areas


def best_classes(logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """See :func:`seamseg.maps.idmaps.upsampled.best_classes`."""
    classes = np.zeros((rows.first.size, columns.first.size), np.uint8)
    for band, scores in _bands(logits, rows, columns):
        best = np.full(classes[band].shape, -np.inf, np.float32)
        for k, x in enumerate(scores):
            better = x > best
            best[better] = x[better]
            classes[band][better] = k
    return classes


def mask_boxes(logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """See :func:`seamseg.maps.idmaps.upsampled.mask_boxes`."""
    low = np.full((len(logits), 2), np.inf, np.float32)
    high = np.full((len(logits), 2), -1, np.float32)
    for band, masks in _bands(logits, rows, columns):
        for k, x in enumerate(masks):
            inside = x >= 0
            for axis, start in ((0, band.start), (1, 0)):
                found = np.flatnonzero(inside.any(1 - axis)) + start
                if found.size:
                    low[k, axis] = min(low[k, axis], found[0])
                    high[k, axis] = max(high[k, axis], found[-1] + 1)
    return np.concatenate((np.where(high < 0, -1, low), high), 1).astype(np.float32)


def overlay(
    image: np.ndarray,
    ids: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray | None,
    colors: np.ndarray,
    outlined: np.ndarray,
    share: int | None,
) -> np.ndarray:
    """See :func:`seamseg.maps.idmaps.segments.overlay`."""
    # an outline depends on the two rows above and below it
    start = max(int(rows.min()) - 2, 0)
    part = ids[start : int(rows.max()) + 3]
    part = np.where((part >= 0) & (part < len(colors)), part, 0)
    lines, drawn = outlines(np.where(outlined[part], part, 0))[rows - start], colors[part][rows - start]
    if columns is not None:
        lines, drawn = lines[:, columns], drawn[:, columns]
    if share is None:
        blended: np.ndarray = ((image.astype(np.uint16) + drawn) // 2).astype(np.uint8)
    else:
        # the largest sum, 255 * 256 + 128, fits
        mixed = image.astype(np.uint16) * np.uint16(256 - share) + drawn.astype(np.uint16) * np.uint16(share)
        blended = ((mixed + np.uint16(128)) >> np.uint16(8)).astype(np.uint8)
    blended[lines] = 255
    return blended


def outlines(instances: np.ndarray) -> np.ndarray:
    """Find the pixels of the outlines of instances.

    These are background pixels adjacent to an instance, instance pixels adjacent to another instance, and the four
    neighbours of both: about two pixels outside and one inside.

    Parameters
    ----------
    instances : integer `H x W` ids, 0 where there is no instance

    Returns
    -------
    bool `H x W`
    """
    high = _reduce_3x3(np.maximum, instances, cross=True)
    low = _reduce_3x3(np.minimum, instances, cross=True)
    background = instances == 0
    largest = np.iinfo(instances.dtype).max
    others = _reduce_3x3(np.maximum, instances) != _reduce_3x3(np.minimum, np.where(background, largest, instances))
    # The original also marks an instance pixel if the three pixels left or right of it are all background (an overflow
    # in its column-wise minimum); kept for identical images.
    padded = np.pad(background, 1, mode="edge")
    column = padded[:-2] & padded[1:-1] & padded[2:]
    overflow = column[:, :-2] | column[:, 2:]
    edge = (high != low) & (background | others | overflow)
    return _reduce_3x3(np.logical_or, edge, cross=True)


def _reduce_3x3(ufunc: np.ufunc, values: np.ndarray, cross: bool = False) -> np.ndarray:
    """Reduce the 3x3 neighbourhood of each pixel, or its cross; the border is replicated."""
    height, width = values.shape
    padded = np.pad(values, 1, mode="edge")
    result: np.ndarray = values.copy()
    for y in range(3):
        for x in range(3):
            if (y, x) != (1, 1) and (not cross or 1 in (y, x)):
                ufunc(result, padded[y : y + height, x : x + width], out=result)
    return result


def png_rows(ids: np.ndarray, above: np.ndarray | None, values: np.ndarray | None) -> np.ndarray:
    """See :func:`seamseg.maps.idmaps.segments.png_rows`."""
    height, width = ids.shape
    rows = ids if above is None else np.concatenate((above[None], ids))
    known = rows if values is None else np.append(values, np.uint32(0))[rows.clip(-1, len(values))]
    pixels = np.stack([known >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8).reshape(len(rows), 3 * width)
    filtered = np.full((height, 3 * width + 1), 2, np.uint8)
    before = np.zeros((1, 3 * width), np.uint8) if above is None else pixels[:0]
    filtered[:, 1:] = np.diff(np.concatenate((before, pixels)), axis=0)
    return filtered


def _bands(logits: np.ndarray, rows: Axis, columns: Axis) -> Iterator[tuple[slice, Iterator[np.ndarray]]]:
    height = rows.first.size

    def blended(band: slice) -> Iterator[np.ndarray]:
        first, weights = rows.first[band], rows.weights[:, band, None]
        start, stop = first.min(), first.max() + len(weights)
        for cells in logits[:, start:stop]:
            yield _weighted(_weighted(cells, columns.first, columns.weights, 1), first - start, weights, 0)

    for start in range(0, height, _BAND):
        band = slice(start, min(start + _BAND, height))
        yield band, blended(band)


def _weighted(cells: np.ndarray, first: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    """Return weighted sums of consecutive cells along an axis; every step is rounded to float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        total: np.ndarray = weights[0] * cells.take(first, axis)
        for t in range(1, len(weights)):
            total += weights[t] * cells.take(first + t, axis)
    return total


def _exp(x: np.ndarray) -> np.ndarray:
    """Return `fast_exp` of `csrc/fast_exp.h` to the bit, for float32 up to 88."""
    with np.errstate(invalid="ignore"):
        x = np.where(x < -87, np.float32(-87), x)
        shifted = x * np.float32(1.44269504) + np.float32(12582912)
        n = shifted - np.float32(12582912)
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        total = np.full_like(r, np.float32(1) / np.float32(5040))
        for term in (720, 120, 24, 6, 2, 1, 1):
            total = total * r + np.float32(1) / np.float32(term)
        power = ((shifted.view(np.int32) + np.int32(127)) << 23).view(np.float32)
        result: np.ndarray = total * power
    return result
