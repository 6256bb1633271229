"""Large images in overlapping tiles: their positions, prediction with the memory of one tile, and its merging."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from PIL import Image

from seamseg.inference.options import LEAST_SIDE
from seamseg.maps.idmaps.segments import sigmoid
from seamseg.maps.predictions import ArrayPrediction, MapFormat, Prediction

STRIDE = 32
"""Tiles start at multiples of this, the stride of the network, so that its cells match the cells of the whole image."""

EDGE = 4
"""A box this close to an edge of its tile, in pixels, counts as cut by it, since boxes are not exact."""
SAME = 0.5
"""Two pieces are one object if their boxes have this IoU within the overlap of the tiles; a piece belongs to an object
that covers this part of it."""

CLEAR = 16
"""An object whose shorter side has fewer pixels in the coarse view is taken from pieces, if there are any."""

Forward = Callable[[np.ndarray], ArrayPrediction]
"""Runs the network on pixels `h x w x 3` uint8 of an image."""


@dataclass(frozen=True)
class Span:
    """A tile along one axis: the pixels `start .. stop`, of which `core_start .. core_stop` are its core.

    The cores cover the axis without gap or overlap. Two of them meet in the middle of their overlap, so that
    each pixel belongs to the tile whose edge is farthest.
    """

    start: int
    stop: int
    core_start: int
    core_stop: int


@dataclass(frozen=True)
class Tile:
    """A tile of an image: `row` and `column` in the grid, and its spans along both axes."""

    row: int
    column: int
    y: Span
    x: Span


def spans(length: int, side: int, overlap: int) -> list[Span]:
    """Divide an axis of `length` pixels into tiles of `side`, at least `2 * STRIDE`, with at least `overlap` pixels.

    All are `side` long, but the last may be up to :data:`STRIDE` shorter, and a single one is as long as the axis.
    """
    if length <= side:
        return [Span(0, length, 0, length)]
    step = max((side - overlap) // STRIDE, 1) * STRIDE
    last = -(-(length - side) // STRIDE) * STRIDE
    count = -(-last // step)
    # evenly spread; after rounding down, starts differ by at most a step, which is a multiple of the stride
    starts = [i * last // count // STRIDE * STRIDE for i in range(count + 1)]
    stops = [min(start + side, length) for start in starts]
    cuts = [0, *((stop + start + 1) // 2 for stop, start in zip(stops, starts[1:])), length]
    return [Span(*ends) for ends in zip(starts, stops, cuts, cuts[1:])]


def tiles_of(size: tuple[int, int], side: int, overlap: int) -> list[Tile]:
    """Divide an image of `(height, width)` into tiles, row by row."""
    rows, columns = (spans(length, side, overlap) for length in size)
    return [Tile(row, column, y, x) for row, y in enumerate(rows) for column, x in enumerate(columns)]


def predict_in_tiles(
    forward: Forward,
    pixels: np.ndarray,
    side: int,
    overlap: int,
    nms_threshold: float | None,
    formats: Mapping[str, MapFormat] = MappingProxyType({}),
) -> ArrayPrediction:
    """Run the network on overlapping tiles of an image, `H x W x 3` uint8 at network size, and merge the predictions.

    The class of a pixel comes from the tile whose edge is farthest. Objects too large for the overlap come from an
    additional view of the whole image, shrunk to the pixels of a tile. Only the pixels and the maps (one byte a pixel)
    are as large as the image. `nms_threshold` is None for a network without detections.
    """
    height, width = pixels.shape[:2]
    coarse, grain = (None, 1.0) if nms_threshold is None else _coarse_view(forward, pixels, side)
    parts = []
    semantic: np.ndarray | None = None
    maps: dict[str, np.ndarray] = {}
    means = {name for name, spec in formats.items() if spec.tiles == "mean"}
    counts = np.zeros((height, width), np.uint8) if means else None
    for tile in tiles_of((height, width), side, overlap):
        y, x = tile.y, tile.x
        prediction = forward(pixels[y.start : y.stop, x.start : x.stop])
        if prediction.semantic is not None:
            semantic = _with_core(semantic, prediction.semantic, tile, (height, width))
        for name, part in prediction.maps.items():
            if name in means:
                maps[name] = _with_sum(maps.get(name), part, tile, (height, width))
            else:
                maps[name] = _with_core(maps.get(name), part, tile, (height, width))
        if counts is not None:
            counts[y.start : y.stop, x.start : x.stop] += 1
        parts.append((tile, _moved(prediction, offset=(y.start, x.start))))
    for name in means & maps.keys():
        maps[name] /= counts
    if coarse is None or nms_threshold is None:
        return replace(prediction, size=(height, width), semantic=semantic, maps=maps)
    found = merge_detections(parts, coarse, grain, overlap, nms_threshold)
    return replace(found, semantic=semantic, size=(height, width), maps=maps)


def _with_core(whole: np.ndarray | None, part: np.ndarray, tile: Tile, size: tuple[int, int]) -> np.ndarray:
    """Copy the core of the map of a tile into the map of the image, which is made with the first tile."""
    y, x = tile.y, tile.x
    if whole is None:
        whole = np.empty((*part.shape[:-2], *size), part.dtype)
    core = part[..., y.core_start - y.start : y.core_stop - y.start, x.core_start - x.start : x.core_stop - x.start]
    whole[..., y.core_start : y.core_stop, x.core_start : x.core_stop] = core
    return whole


def _with_sum(whole: np.ndarray | None, part: np.ndarray, tile: Tile, size: tuple[int, int]) -> np.ndarray:
    """Add the map of a tile to the map of the image, which is made with the first tile."""
    if whole is None:
        whole = np.zeros((*part.shape[:-2], *size), np.float32)
    whole[..., tile.y.start : tile.y.stop, tile.x.start : tile.x.stop] += part
    return whole


def _coarse_view(forward: Forward, pixels: np.ndarray, side: int) -> tuple[ArrayPrediction, float]:
    """Detect on the whole image, shrunk to at most the pixels of a tile; return detections and the factor."""
    height, width = pixels.shape[:2]
    shrink = min(side / math.sqrt(height * width), 1.0)
    size = max(int(height * shrink), 1), max(int(width * shrink), 1)
    size = min(size[0], side**2), min(size[1], side**2)  # for an image one pixel high or wide
    small = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))
    scale = height / size[0], width / size[1]
    return _moved(forward(small), scale), max(scale)


def first_side(size: tuple[int, int]) -> int | None:
    """Return the side of the first tiles to try if an image of `(height, width)` is too large; None if it is tiny."""
    side = math.isqrt(size[0] * size[1]) // 2
    return None if size[0] * size[1] <= LEAST_SIDE**2 else max(side, LEAST_SIDE)


def _concatenated(parts: Sequence[ArrayPrediction]) -> ArrayPrediction:
    """Concatenate the detections of predictions."""
    masks = [part.mask_logits for part in parts if part.mask_logits is not None]
    return Prediction(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate(masks) if masks else None,
        None,
        parts[0].size,
    )


def _moved(
    p: ArrayPrediction, scale: tuple[float, float] = (1, 1), offset: tuple[int, int] = (0, 0)
) -> ArrayPrediction:
    """Return the detections of a part of the image, scaled and then shifted, `(y, x)` each, without its maps."""
    boxes = p.boxes * np.array(scale * 2, np.float32) + np.array(offset * 2, np.float32)
    return Prediction(boxes, p.classes, p.scores, p.mask_logits, None, p.size)


def merge_detections(
    parts: Sequence[tuple[Tile, ArrayPrediction]],
    coarse: ArrayPrediction,
    grain: float,
    overlap: int,
    nms_threshold: float,
) -> ArrayPrediction:
    """Merge detections so that every object occurs once, and whole: by ascending class, then by descending score.

    An object smaller than the overlap is whole in some tile. So a box that an inner edge cuts is dropped if another
    tile has room for it with a margin. Objects too large for the overlap come from the coarse view, one of whose pixels
    is `grain` wide, and pieces of them are dropped. Pieces of objects that the coarse view misses, or that are too thin
    for it, are joined. Finally boxes of a class suppress each other as within an image.
    """
    rows = list({tile.row: tile.y for tile, _ in parts}.values())
    columns = list({tile.column: tile.x for tile, _ in parts}.values())
    sure = max(overlap - 2 * EDGE, 0)  # objects of this size are whole in some tile

    def larger(p: ArrayPrediction) -> np.ndarray:
        # boxes of the coarse view are less exact: half the size leaves no gap between coarse view and tiles
        result: np.ndarray = (p.boxes[:, 2:] - p.boxes[:, :2]).max(1) > sure / 2
        return result

    whole, pieces = [], []
    for tile, found in parts:
        fits = _fits(found.boxes[:, [0, 2]], rows), _fits(found.boxes[:, [1, 3]], columns)
        here = fits[0][:, tile.row] & fits[1][:, tile.column]
        elsewhere = fits[0].any(1) & fits[1].any(1)
        whole.append(found.rows(here))
        if (~here & ~elsewhere).any():
            pieces.append((tile, found.rows(~here & ~elsewhere)))
    coarse = coarse.rows(larger(coarse))
    clear = (coarse.boxes[:, 2:] - coarse.boxes[:, :2]).min(1) >= CLEAR * grain
    found = _concatenated([*whole, coarse.rows(clear)])
    found = found.rows(_suppress(found, nms_threshold))
    large = found.rows(larger(found))
    # joined first: a sliver of an object may be just outside of its box in the coarse view
    found = _concatenated([found, *(one.rows(~_covered(one, large)) for one in _join_pieces(pieces))])
    unclear = coarse.rows(~clear)
    found = _concatenated([found, unclear.rows(~_covered(unclear, found))])
    kept = _suppress(found, nms_threshold)
    return found.rows(kept[np.argsort(found.classes[kept], kind="stable")])


def _suppress(found: ArrayPrediction, threshold: float) -> np.ndarray:
    """Return the indices that non-maximum suppression within each class keeps, by descending score.

    As :func:`seamseg.ops.nms.nms`: a box is suppressed from an IoU of `threshold`, ties are in the order of the boxes.
    """
    kept: list[int] = []
    order = np.argsort(-found.scores, kind="stable")
    for category in np.unique(found.classes):
        left = order[found.classes[order] == category]
        while len(left):
            kept.append(int(left[0]))
            left = left[1:][~(_iou(found.boxes[left[:1]], found.boxes[left[1:]])[0] >= threshold)]
    chosen = np.sort(np.array(kept, np.int64))
    return chosen[np.argsort(-found.scores[chosen], kind="stable")]


def _intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the area that each of `N` boxes shares with each of `M`, `N x M`."""
    height, width = (
        (np.minimum(a[:, None, k + 2], b[:, k + 2]) - np.maximum(a[:, None, k], b[:, k])).clip(0) for k in (0, 1)
    )
    areas: np.ndarray = height * width
    return areas


def _area(boxes: np.ndarray) -> np.ndarray:
    areas: np.ndarray = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    common = _intersection(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN for two empty boxes
        ratio: np.ndarray = common / (_area(a)[:, None] + _area(b) - common)
        return ratio


def _fits(ends: np.ndarray, along: list[Span]) -> np.ndarray:
    """Return whether each of `K` intervals is in each span, not close to an inner end of it, `K x S` bool."""
    low = [-np.inf if i == 0 else span.start + EDGE for i, span in enumerate(along)]
    high = [np.inf if i == len(along) - 1 else span.stop - EDGE for i, span in enumerate(along)]
    return (ends[:, :1] >= np.array(low, np.float32)) & (ends[:, 1:] <= np.array(high, np.float32))


def _covered(pieces: ArrayPrediction, objects: ArrayPrediction) -> np.ndarray:
    """Return which pieces are mostly covered by an object of their class."""
    same = pieces.classes[:, None] == objects.classes
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN for an empty piece
        overlap = _intersection(pieces.boxes, objects.boxes) / _area(pieces.boxes)[:, None]
    found: np.ndarray = (same & (overlap >= SAME)).any(1)
    return found


def _join_pieces(pieces: list[tuple[Tile, ArrayPrediction]]) -> list[ArrayPrediction]:
    """Join pieces in neighbouring tiles to objects."""
    if not pieces:
        return []
    numbers = {(tile.row, tile.column): number for number, (tile, _) in enumerate(pieces)}
    firsts = [0]
    for _, piece in pieces:
        firsts.append(firsts[-1] + len(piece.scores))
    group = list(range(firsts[-1]))

    def root(i: int) -> int:
        while group[i] != i:
            i = group[i]
        return i

    for (row, column), number in numbers.items():
        for down, right in ((0, 1), (1, -1), (1, 0), (1, 1)):
            other = numbers.get((row + down, column + right))
            if other is not None:
                for i, j in _agreeing(pieces[number], pieces[other]).tolist():
                    a, b = sorted((root(firsts[number] + i), root(firsts[other] + j)))
                    group[b] = a
    members = defaultdict(list)
    for i in range(len(group)):
        members[root(i)].append(i)
    everything = _concatenated([piece for _, piece in pieces])
    return [_union(everything.rows(np.array(member))) for member in members.values()]


def _agreeing(a: tuple[Tile, ArrayPrediction], b: tuple[Tile, ArrayPrediction]) -> np.ndarray:
    """Return pairs `P x 2` of pieces of one class whose boxes agree within the overlap of their tiles."""
    (p, first), (q, second) = a, b
    low = np.array((max(p.y.start, q.y.start), max(p.x.start, q.x.start)), np.float32)
    high = np.array((min(p.y.stop, q.y.stop), min(p.x.stop, q.x.stop)), np.float32)

    def common(boxes: np.ndarray) -> np.ndarray:
        return np.concatenate((np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)), 1)

    in_a, in_b = common(first.boxes), common(second.boxes)
    there = [np.all(boxes[:, 2:] > boxes[:, :2], axis=1) for boxes in (in_a, in_b)]
    same = first.classes[:, None] == second.classes
    return np.argwhere(same & np.expand_dims(there[0], 1) & there[1] & (_iou(in_a, in_b) >= SAME))


def _union(pieces: ArrayPrediction) -> ArrayPrediction:
    """Return one detection around all pieces, with the best of their scores and the union of their masks."""
    if len(pieces.scores) == 1:
        return pieces
    box = np.concatenate((pieces.boxes[:, :2].min(0), pieces.boxes[:, 2:].max(0)))
    masks = None
    if pieces.mask_logits is not None:
        probabilities = np.stack([_resampled(*piece, box) for piece in zip(sigmoid(pieces.mask_logits), pieces.boxes)])
        united = probabilities.max(0, keepdims=True).clip(1e-4, 1 - 1e-4)
        masks = np.log(united / (1 - united)).astype(np.float32)
    score = pieces.scores.max(keepdims=True)
    return replace(pieces, boxes=box[None], classes=pieces.classes[:1], scores=score, mask_logits=masks)


def _resampled(mask: np.ndarray, own: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Sample the probabilities `h x w` of a mask over its own box at the cells of another box; 0 outside."""
    for axis, cells in enumerate(mask.shape):
        low, high = own[axis], own[axis + 2]
        centres = box[axis] + (np.arange(cells, dtype=np.float32) + np.float32(0.5)) / cells * (
            box[axis + 2] - box[axis]
        )
        within = (centres >= low) & (centres <= high)
        # border values extend half a cell beyond the centre of the last cell, up to the box of the piece
        where = ((centres - low) / (high - low) * cells - np.float32(0.5)).clip(0, cells - 1)
        first = where.astype(np.intp)
        shape = [-1 if k == axis else 1 for k in range(2)]
        share = (where - first).reshape(shape)
        mask = (1 - share) * mask.take(first, axis) + share * mask.take(np.minimum(first + 1, cells - 1), axis)
        mask = mask * within.reshape(shape)
    return mask
