"""Merging of the detections of overlapping tiles and of a coarse view of the whole image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seamseg.maps.idmaps.segments import sigmoid
from seamseg.maps.predictions import ArrayPrediction

EDGE = 4
"""A box this close to an edge of its tile, in pixels, counts as cut by it, since boxes are not exact."""
SAME = 0.5
"""Two pieces are one object if their boxes have this IoU within the overlap of the tiles; a piece belongs to an object
that covers this part of it."""

CLEAR = 16
"""An object whose shorter side has fewer pixels in the coarse view is taken from pieces, if there are any."""


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


@dataclass(frozen=True)
class TileDetections:
    """Detections in pixels of the image: boxes `K x 4`, classes `K`, scores `K`, mask logits `K x h x w` or None."""

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    masks: np.ndarray | None

    @staticmethod
    def of(
        prediction: ArrayPrediction, scale: tuple[float, float] = (1, 1), offset: tuple[int, int] = (0, 0)
    ) -> TileDetections:
        """Return the detections of a part of the image, scaled and then shifted, `(y, x)` each."""
        boxes = prediction.boxes * np.array(scale * 2, np.float32) + np.array(offset * 2, np.float32)
        return TileDetections(boxes, prediction.classes, prediction.scores, prediction.mask_logits)

    @staticmethod
    def concatenate(parts: Sequence[TileDetections]) -> TileDetections:
        """Concatenate detections."""
        masks = [part.masks for part in parts if part.masks is not None]
        return TileDetections(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate(masks) if masks else None,
        )

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, chosen: np.ndarray) -> TileDetections:
        masks = None if self.masks is None else self.masks[chosen]
        return TileDetections(self.boxes[chosen], self.classes[chosen], self.scores[chosen], masks)

    def larger_than(self, side: float) -> np.ndarray:
        """Return whether height or width is above `side`, `K` bool."""
        large: np.ndarray = (self.boxes[:, 2:] - self.boxes[:, :2]).max(1) > side
        return large


def merge_detections(
    parts: Sequence[tuple[Tile, TileDetections]],
    coarse: TileDetections,
    grain: float,
    overlap: int,
    nms_threshold: float,
) -> TileDetections:
    """Merge detections so that every object occurs once, and whole: by ascending class, then by descending score.

    An object smaller than the overlap is whole in some tile. So a box that an inner edge cuts is dropped if another
    tile has room for it with a margin. Objects too large for the overlap come from the coarse view, and pieces of them
    are dropped. Pieces of objects that the coarse view misses, or that are too thin for it, are joined. Finally boxes
    of a class suppress each other as within an image.

    All detections are in pixels of the image: each tile has its own, and `coarse` are of the whole image at a smaller
    scale, one of whose pixels is `grain` wide. `overlap` is the minimum of neighbouring tiles; of two boxes of a class
    with an IoU of `nms_threshold` only the one with the higher score is kept.
    """
    rows = _spans_of([tile.row for tile, _ in parts], [tile.y for tile, _ in parts])
    columns = _spans_of([tile.column for tile, _ in parts], [tile.x for tile, _ in parts])
    sure = max(overlap - 2 * EDGE, 0)  # objects of this size are whole in some tile
    whole, pieces = [], []
    for tile, found in parts:
        fits = _fits(found.boxes[:, [0, 2]], rows), _fits(found.boxes[:, [1, 3]], columns)
        here = fits[0][:, tile.row] & fits[1][:, tile.column]
        elsewhere = fits[0].any(1) & fits[1].any(1)
        whole.append(found[here])
        if (~here & ~elsewhere).any():
            pieces.append((tile, found[~here & ~elsewhere]))
    # boxes of the coarse view are less exact: half the size leaves no gap between coarse view and tiles
    coarse = coarse[coarse.larger_than(sure / 2)]
    clear = (coarse.boxes[:, 2:] - coarse.boxes[:, :2]).min(1) >= CLEAR * grain
    found = TileDetections.concatenate([*whole, coarse[clear]])
    found = found[_suppress(found, nms_threshold)]
    large = found[found.larger_than(sure / 2)]
    # joined first: a sliver of an object may be just outside of its box in the coarse view
    found = TileDetections.concatenate([found, *(one[~_covered(one, large)] for one in _join_pieces(pieces))])
    unclear = coarse[~clear]
    found = TileDetections.concatenate([found, unclear[~_covered(unclear, found)]])
    kept = _suppress(found, nms_threshold)
    return found[kept[np.argsort(found.classes[kept], kind="stable")]]


def _suppress(found: TileDetections, threshold: float) -> np.ndarray:
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


def _spans_of(indices: list[int], spans: list[Span]) -> list[Span]:
    by_index = dict(zip(indices, spans))
    return [by_index[index] for index in range(len(by_index))]


def _fits(ends: np.ndarray, along: list[Span]) -> np.ndarray:
    """Return whether each of `K` intervals is in each span, not close to an inner end of it, `K x S` bool."""
    low = [-np.inf if i == 0 else span.start + EDGE for i, span in enumerate(along)]
    high = [np.inf if i == len(along) - 1 else span.stop - EDGE for i, span in enumerate(along)]
    return (ends[:, :1] >= np.array(low, np.float32)) & (ends[:, 1:] <= np.array(high, np.float32))


def _covered(pieces: TileDetections, objects: TileDetections) -> np.ndarray:
    """Return which pieces are mostly covered by an object of their class."""
    same = pieces.classes[:, None] == objects.classes
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN for an empty piece
        overlap = _intersection(pieces.boxes, objects.boxes) / _area(pieces.boxes)[:, None]
    found: np.ndarray = (same & (overlap >= SAME)).any(1)
    return found


def _join_pieces(pieces: list[tuple[Tile, TileDetections]]) -> list[TileDetections]:
    """Join pieces in neighbouring tiles to objects."""
    if not pieces:
        return []
    numbers = {(tile.row, tile.column): number for number, (tile, _) in enumerate(pieces)}
    firsts = [0]
    for _, piece in pieces:
        firsts.append(firsts[-1] + len(piece))
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
    everything = TileDetections.concatenate([piece for _, piece in pieces])
    return [_union(everything[np.array(member)]) for member in members.values()]


def _agreeing(a: tuple[Tile, TileDetections], b: tuple[Tile, TileDetections]) -> np.ndarray:
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


def _union(pieces: TileDetections) -> TileDetections:
    """Return one detection around all pieces, with the best of their scores and the union of their masks."""
    if len(pieces) == 1:
        return pieces
    box = np.concatenate((pieces.boxes[:, :2].min(0), pieces.boxes[:, 2:].max(0)))
    masks = None
    if pieces.masks is not None:
        probabilities = np.stack([_resampled(*piece, box) for piece in zip(sigmoid(pieces.masks), pieces.boxes)])
        united = probabilities.max(0, keepdims=True).clip(1e-4, 1 - 1e-4)
        masks = np.log(united / (1 - united)).astype(np.float32)
    return TileDetections(box[None], pieces.classes[:1], pieces.scores.max(keepdims=True), masks)


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
