"""Non-maximum suppression in plain torch: block by block, with one copy to the host a block."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops.reference import widened
from seamseg.ops.reference.boxes import box_iou

_BLOCK = 256


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int, groups: Tensor | None) -> Tensor:
    """See :func:`seamseg.ops.nms.nms`; arguments are not checked."""
    count = boxes.shape[0]
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    # overlaps in half precision have two correct digits only
    boxes = widened(boxes)
    order = torch.argsort(scores, descending=True, stable=True)
    if groups is None:
        return order[_suppress(boxes[order], [count], iou_threshold, n_max)]
    order = order[torch.argsort(groups[order], stable=True)]
    lengths = torch.unique_consecutive(groups[order], return_counts=True)[1].tolist()
    kept = order[_suppress(boxes[order], lengths, iou_threshold, n_max)]
    # by score again; the sort by index before it keeps ties ordered by index
    kept = kept.sort().values
    return kept[torch.argsort(scores[kept], descending=True, stable=True)]


def nms_fixed(
    boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int, groups: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.nms.nms_fixed`; arguments are not checked."""
    kept = nms(boxes, scores, iou_threshold, n_max, groups)
    indices = kept.new_full((fixed_size(boxes.shape[0], n_max, groups),), -1)
    indices[: kept.shape[0]] = kept
    return indices, torch.full((), kept.shape[0], dtype=torch.int64, device=kept.device)


def fixed_size(count: int, n_max: int, groups: Tensor | None) -> int | torch.SymInt:
    """Return the largest number of boxes that :func:`nms` may keep of `count`."""
    return torch.sym_min(count, n_max) if n_max > 0 and groups is None else count


def _suppress(boxes: Tensor, lengths: list[int], threshold: float, n_max: int) -> Tensor:
    """Return the positions of the kept boxes, of boxes sorted by group and decreasing score; `lengths` are group sizes.

    Works block by block: a block is tested against the kept boxes of its group at once, then within itself. The work
    is `kept x N` overlaps, vectorised, with one copy to the host a block; small groups share a block.
    """
    kept: list[Tensor] = []
    start = 0
    group = 0
    while group < len(lengths):
        # join small groups into one block: their cross overlaps are masked out
        stop = group + 1
        size = lengths[group]
        while stop < len(lengths) and size + lengths[stop] <= _BLOCK:
            size += lengths[stop]
            stop += 1
        if stop - group == 1:
            kept.append(_suppress_one(boxes, start, start + size, threshold, n_max))
        else:
            kept.append(_suppress_joined(boxes[start : start + size], lengths[group:stop], threshold, n_max) + start)
        start += size
        group = stop
    return torch.cat(kept)


def _suppress_one(boxes: Tensor, start: int, stop: int, threshold: float, n_max: int) -> Tensor:
    kept = boxes.new_empty(0, 4)
    positions: list[Tensor] = []
    total = 0
    for first in range(start, stop, _BLOCK):
        block = boxes[first : min(first + _BLOCK, stop)]
        candidates = torch.arange(first, first + block.shape[0], device=boxes.device)
        if total:
            free = ~(box_iou(kept, block) >= threshold).any(0)
            candidates = candidates[free]
            block = boxes[candidates]
        chosen = _greedy(box_iou(block, block) >= threshold)
        if n_max > 0:
            chosen = chosen[: n_max - total]
        positions.append(candidates[chosen])
        kept = torch.cat((kept, block[chosen]))
        total += chosen.shape[0]
        if 0 < n_max <= total:
            break
    return torch.cat(positions)


def _suppress_joined(boxes: Tensor, lengths: list[int], threshold: float, n_max: int) -> Tensor:
    group = torch.repeat_interleave(torch.tensor(lengths)).to(boxes.device)
    chosen = _greedy((box_iou(boxes, boxes) >= threshold) & (group[:, None] == group[None]))
    if n_max > 0:
        group = group[chosen]
        first = torch.searchsorted(group, group)
        chosen = chosen[torch.arange(len(chosen), device=boxes.device) - first < n_max]
    return chosen


def _greedy(suppresses: Tensor) -> Tensor:
    """Choose greedily by the `N x N` matrix of suppressions; rows of low index come first."""
    matrix = suppresses.triu(1).cpu().numpy()
    alive = [True] * len(matrix)
    counts = matrix.sum(1).tolist()
    for i, count in enumerate(counts):
        if count and alive[i]:
            for j in matrix[i].nonzero()[0].tolist():
                alive[j] = False
    return torch.tensor(alive).nonzero().squeeze(1).to(suppresses.device)
