"""The detections of overlapping tiles, and of a coarse view of the whole image, become those of one image."""

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
"""A box that comes this close to an edge of its tile, in pixels, is taken as cut by it: boxes are not exact."""
SAME = 0.5
"""Two pieces whose boxes agree by this IoU where both tiles look are one object; a piece is explained by an object
that holds this part of it."""

CLEAR = 16
"""An object whose shorter side has fewer pixels in the coarse view is known better from pieces, where there are any."""


@dataclass(frozen=True)
class Detections:
    """Detections in pixels of the image: boxes `K x 4`, classes `K`, scores `K`, mask logits `K x h x w` or None."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor
    masks: Tensor | None

    @staticmethod
    def of(prediction: Prediction, scale: tuple[float, float] = (1, 1), offset: tuple[int, int] = (0, 0)) -> Detections:
        """Those of a part of the image, scaled and then moved, `(y, x)` each."""
        boxes = prediction.boxes * prediction.boxes.new_tensor(scale * 2) + prediction.boxes.new_tensor(offset * 2)
        return Detections(boxes, prediction.classes, prediction.scores, prediction.mask_logits)

    @staticmethod
    def joined(parts: Sequence[Detections]) -> Detections:
        """One after the other."""
        masks = [part.masks for part in parts if part.masks is not None]
        return Detections(
            torch.cat([part.boxes for part in parts]),
            torch.cat([part.classes for part in parts]),
            torch.cat([part.scores for part in parts]),
            torch.cat(masks) if masks else None,
        )

    def __len__(self) -> int:
        return self.boxes.shape[0]

    def __getitem__(self, chosen: Tensor) -> Detections:
        masks = None if self.masks is None else self.masks[chosen]
        return Detections(self.boxes[chosen], self.classes[chosen], self.scores[chosen], masks)

    def larger_than(self, side: float) -> Tensor:
        """`K` bool: height or width above `side`."""
        return (self.boxes[:, 2:] - self.boxes[:, :2]).amax(1) > side


def merge_detections(
    parts: Sequence[tuple[Tile, Detections]], coarse: Detections, grain: float, overlap: int, nms_threshold: float
) -> Detections:
    """Every object once, and whole.

    An object that is small against the overlap lies whole in some tile. So a box that an inner edge cuts is dropped
    where another tile has room for all of it and more. Objects too large for the overlap come from the coarse view,
    and pieces of them are dropped. Pieces of objects that only tiles saw, or that are too thin for the coarse view, are
    put together. Of what is left, boxes of a class suppress each other as within an image.

    Parameters
    ----------
    parts : each tile of the image with its detections, in pixels of the image
    coarse : what was seen of the whole image at a smaller scale, in pixels of the image
    grain : pixels of the image that a pixel of that view is wide
    overlap : that neighbouring tiles share at least
    nms_threshold : of two boxes of a class with at least this IoU only the better stays

    Returns
    -------
    Detections
        class by class (rising), then by falling score
    """
    rows = _spans_of([tile.row for tile, _ in parts], [tile.y for tile, _ in parts])
    columns = _spans_of([tile.column for tile, _ in parts], [tile.x for tile, _ in parts])
    sure = max(overlap - 2 * EDGE, 0)  # objects of this size are whole in some tile
    whole, pieces = [], []
    for tile, seen in parts:
        fits = _fits(seen.boxes[:, [0, 2]], rows), _fits(seen.boxes[:, [1, 3]], columns)
        here = fits[0][:, tile.row] & fits[1][:, tile.column]
        elsewhere = fits[0].any(1) & fits[1].any(1)
        whole.append(seen[here])
        if (~here & ~elsewhere).any():
            pieces.append((tile, seen[~here & ~elsewhere]))
    # boxes of the coarse view are less exact: half the size leaves no gap between what it gives and what tiles give
    coarse = coarse[coarse.larger_than(sure / 2)]
    clear = (coarse.boxes[:, 2:] - coarse.boxes[:, :2]).amin(1) >= CLEAR * grain
    found = Detections.joined([*whole, coarse[clear]])
    found = found[nms(found.boxes, found.scores, nms_threshold, groups=found.classes)]
    large = found[found.larger_than(sure / 2)]
    # together first: a sliver of an object may lie just outside of the box that the coarse view gives it
    found = Detections.joined([found, *(one[~_explained(one, large)] for one in _put_together(pieces))])
    unclear = coarse[~clear]
    found = Detections.joined([found, unclear[~_explained(unclear, found)]])
    kept = nms(found.boxes, found.scores, nms_threshold, groups=found.classes)
    return found[kept[torch.argsort(found.classes[kept], stable=True)]]


def _spans_of(places: list[int], given: list[Span]) -> list[Span]:
    by_place = dict(zip(places, given))
    return [by_place[place] for place in range(len(by_place))]


def _fits(ends: Tensor, along: list[Span]) -> Tensor:
    """`K x S`: whether each of `K` intervals lies in each span without coming close to an inner end of it."""
    low = [-torch.inf if i == 0 else span.start + EDGE for i, span in enumerate(along)]
    high = [torch.inf if i == len(along) - 1 else span.stop - EDGE for i, span in enumerate(along)]
    return (ends[:, :1] >= ends.new_tensor(low)) & (ends[:, 1:] <= ends.new_tensor(high))


def _explained(pieces: Detections, objects: Detections) -> Tensor:
    """Which pieces lie for the most part in an object of their class."""
    same = pieces.classes[:, None] == objects.classes
    return (same & (box_overlap(pieces.boxes, objects.boxes) >= SAME)).any(1)


def _put_together(pieces: list[tuple[Tile, Detections]]) -> list[Detections]:
    """The objects that pieces in neighbouring tiles make up."""
    if not pieces:
        return []
    places = {(tile.row, tile.column): number for number, (tile, _) in enumerate(pieces)}
    firsts = [0]
    for _, piece in pieces:
        firsts.append(firsts[-1] + len(piece))
    group = list(range(firsts[-1]))

    def root(i: int) -> int:
        while group[i] != i:
            i = group[i]
        return i

    for (row, column), number in places.items():
        for down, right in ((0, 1), (1, -1), (1, 0), (1, 1)):
            other = places.get((row + down, column + right))
            if other is not None:
                for i, j in _agreeing(pieces[number], pieces[other]).tolist():
                    a, b = sorted((root(firsts[number] + i), root(firsts[other] + j)))
                    group[b] = a
    members = defaultdict(list)
    for i in range(len(group)):
        members[root(i)].append(i)
    everything = Detections.joined([piece for _, piece in pieces])
    return [_union(everything[torch.tensor(member)]) for member in members.values()]


def _agreeing(a: tuple[Tile, Detections], b: tuple[Tile, Detections]) -> Tensor:
    """Pairs `P x 2` of pieces of one class whose boxes agree where both tiles look."""
    (p, first), (q, second) = a, b
    low = first.boxes.new_tensor((max(p.y.start, q.y.start), max(p.x.start, q.x.start)))
    high = first.boxes.new_tensor((min(p.y.stop, q.y.stop), min(p.x.stop, q.x.stop)))

    def common(boxes: Tensor) -> Tensor:
        return torch.cat((torch.maximum(boxes[:, :2], low), torch.minimum(boxes[:, 2:], high)), 1)

    in_a, in_b = common(first.boxes), common(second.boxes)
    there = [(boxes[:, 2:] > boxes[:, :2]).all(1) for boxes in (in_a, in_b)]
    same = first.classes[:, None] == second.classes
    return torch.nonzero(same & there[0][:, None] & there[1] & (box_iou(in_a, in_b) >= SAME))


def _union(pieces: Detections) -> Detections:
    """One detection around all pieces, with the best of their scores; its mask is where any of theirs is."""
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
        # the border's value reaches half a cell beyond the last cell's middle, and no further than the piece's box
        within = ((grid >= -1) & (grid <= 1)).all(-1)
        chances = functional.grid_sample(
            pieces.masks.float().sigmoid()[:, None], grid, padding_mode="border", align_corners=False
        )[:, 0]
        masks = torch.logit((chances * within).amax(0, keepdim=True), eps=1e-4)
    return Detections(box[None], pieces.classes[:1], pieces.scores.amax(0, keepdim=True), masks)
