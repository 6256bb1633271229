"""Merging of the detections of overlapping tiles and of a coarse view of the whole image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.inference.tiling.tiles import Span, Tile
from seamseg.ops.boxes import box_iou, box_overlap
from seamseg.ops.nms import nms
from seamseg.structures import Prediction

EDGE = 4
"""A box this close to an edge of its tile, in pixels, counts as cut by it, since boxes are not exact."""
SAME = 0.5
"""Two pieces are one object if their boxes have this IoU within the overlap of the tiles; a piece belongs to an object
that covers this part of it."""

CLEAR = 16
"""An object whose shorter side has fewer pixels in the coarse view is taken from pieces, if there are any."""


@dataclass(frozen=True)
class TileDetections:
    """Detections in pixels of the image: boxes `K x 4`, classes `K`, scores `K`, mask logits `K x h x w` or None."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor
    masks: Tensor | None

    @staticmethod
    def of(
        prediction: Prediction, scale: tuple[float, float] = (1, 1), offset: tuple[int, int] = (0, 0)
    ) -> TileDetections:
        """Return those of a part of the image, scaled and then shifted, `(y, x)` each."""
        boxes = prediction.boxes * prediction.boxes.new_tensor(scale * 2) + prediction.boxes.new_tensor(offset * 2)
        return TileDetections(boxes, prediction.classes, prediction.scores, prediction.mask_logits)

    @staticmethod
    def concatenate(parts: Sequence[TileDetections]) -> TileDetections:
        """Concatenate detections."""
        masks = [part.masks for part in parts if part.masks is not None]
        return TileDetections(
            torch.cat([part.boxes for part in parts]),
            torch.cat([part.classes for part in parts]),
            torch.cat([part.scores for part in parts]),
            torch.cat(masks) if masks else None,
        )

    def __len__(self) -> int:
        return self.boxes.shape[0]

    def __getitem__(self, chosen: Tensor) -> TileDetections:
        masks = None if self.masks is None else self.masks[chosen]
        return TileDetections(self.boxes[chosen], self.classes[chosen], self.scores[chosen], masks)

    def larger_than(self, side: float) -> Tensor:
        """Return whether height or width is above `side`, `K` bool."""
        return (self.boxes[:, 2:] - self.boxes[:, :2]).amax(1) > side


def merge_detections(
    parts: Sequence[tuple[Tile, TileDetections]],
    coarse: TileDetections,
    grain: float,
    overlap: int,
    nms_threshold: float,
) -> TileDetections:
    """Merge detections so that every object occurs once, and whole.

    An object smaller than the overlap is whole in some tile. So a box that an inner edge cuts is dropped if another
    tile has room for it with a margin. Objects too large for the overlap come from the coarse view, and pieces of them
    are dropped. Pieces of objects that the coarse view misses, or that are too thin for it, are joined. Finally boxes
    of a class suppress each other as within an image.

    Parameters
    ----------
    parts : each tile of the image with its detections, in pixels of the image
    coarse : detections on the whole image at a smaller scale, in pixels of the image
    grain : width of a pixel of that view in pixels of the image
    overlap : minimum overlap of neighbouring tiles
    nms_threshold : of two boxes of a class with at least this IoU only the one with the higher score is kept

    Returns
    -------
    TileDetections
        by ascending class, then by descending score
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
    clear = (coarse.boxes[:, 2:] - coarse.boxes[:, :2]).amin(1) >= CLEAR * grain
    found = TileDetections.concatenate([*whole, coarse[clear]])
    found = found[nms(found.boxes, found.scores, nms_threshold, groups=found.classes)]
    large = found[found.larger_than(sure / 2)]
    # joined first: a sliver of an object may be just outside of its box in the coarse view
    found = TileDetections.concatenate([found, *(one[~_covered(one, large)] for one in _join_pieces(pieces))])
    unclear = coarse[~clear]
    found = TileDetections.concatenate([found, unclear[~_covered(unclear, found)]])
    kept = nms(found.boxes, found.scores, nms_threshold, groups=found.classes)
    return found[kept[torch.argsort(found.classes[kept], stable=True)]]


def _spans_of(indices: list[int], spans: list[Span]) -> list[Span]:
    by_index = dict(zip(indices, spans))
    return [by_index[index] for index in range(len(by_index))]


def _fits(ends: Tensor, along: list[Span]) -> Tensor:
    """Return whether each of `K` intervals is in each span, not close to an inner end of it, `K x S` bool."""
    low = [-torch.inf if i == 0 else span.start + EDGE for i, span in enumerate(along)]
    high = [torch.inf if i == len(along) - 1 else span.stop - EDGE for i, span in enumerate(along)]
    return (ends[:, :1] >= ends.new_tensor(low)) & (ends[:, 1:] <= ends.new_tensor(high))


def _covered(pieces: TileDetections, objects: TileDetections) -> Tensor:
    """Return which pieces are mostly covered by an object of their class."""
    same = pieces.classes[:, None] == objects.classes
    return (same & (box_overlap(pieces.boxes, objects.boxes) >= SAME)).any(1)


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
    return [_union(everything[torch.tensor(member)]) for member in members.values()]


def _agreeing(a: tuple[Tile, TileDetections], b: tuple[Tile, TileDetections]) -> Tensor:
    """Return pairs `P x 2` of pieces of one class whose boxes agree within the overlap of their tiles."""
    (p, first), (q, second) = a, b
    low = first.boxes.new_tensor((max(p.y.start, q.y.start), max(p.x.start, q.x.start)))
    high = first.boxes.new_tensor((min(p.y.stop, q.y.stop), min(p.x.stop, q.x.stop)))

    def common(boxes: Tensor) -> Tensor:
        return torch.cat((torch.maximum(boxes[:, :2], low), torch.minimum(boxes[:, 2:], high)), 1)

    in_a, in_b = common(first.boxes), common(second.boxes)
    there = [(boxes[:, 2:] > boxes[:, :2]).all(1) for boxes in (in_a, in_b)]
    same = first.classes[:, None] == second.classes
    return torch.nonzero(same & there[0][:, None] & there[1] & (box_iou(in_a, in_b) >= SAME))


def _union(pieces: TileDetections) -> TileDetections:
    """Return one detection around all pieces, with the best of their scores and the union of their masks."""
    if len(pieces) == 1:
        return pieces
    box = torch.cat((pieces.boxes[:, :2].amin(0), pieces.boxes[:, 2:].amax(0)))
    masks = None
    if pieces.masks is not None:
        height, width = pieces.masks.shape[-2:]
        rows = box[0] + (torch.arange(height) + 0.5) / height * (box[2] - box[0])
        columns = box[1] + (torch.arange(width) + 0.5) / width * (box[3] - box[1])
        # -1 .. 1 across the box of each piece
        low, span = pieces.boxes[:, :2], pieces.boxes[:, 2:] - pieces.boxes[:, :2]
        y = (rows - low[:, :1]) / span[:, :1] * 2 - 1
        x = (columns - low[:, 1:]) / span[:, 1:] * 2 - 1
        grid = torch.stack((x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), -1)
        # border values extend half a cell beyond the centre of the last cell, up to the box of the piece
        within = ((grid >= -1) & (grid <= 1)).all(-1)
        probabilities = functional.grid_sample(
            pieces.masks.float().sigmoid()[:, None], grid, padding_mode="border", align_corners=False
        )[:, 0]
        masks = torch.logit((probabilities * within).amax(0, keepdim=True), eps=1e-4)
    return TileDetections(box[None], pieces.classes[:1], pieces.scores.amax(0, keepdim=True), masks)
