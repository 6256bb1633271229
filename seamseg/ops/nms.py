"""Non-maximum suppression, greedy and exact, and other choices of rows for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import define
from seamseg.ops.reference import boxes as reference


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int = -1, groups: Tensor | None = None) -> Tensor:
    """Visit boxes by decreasing score; keep each that no kept box overlaps with `IoU >= iou_threshold`.

    The lower index of equal scores comes first; a NaN score counts as the highest. A NaN IoU (two empty boxes, a NaN
    corner) never suppresses. Overlaps of boxes in half precision are computed in float32.

    Parameters
    ----------
    boxes : `N x 4`
    scores : `N`
    iou_threshold : suppression starts at this IoU
    n_max : keep at most this many boxes (of each group, if groups are given); no limit if not positive
    groups : `N` int64 or None; boxes suppress only boxes of their own group (class, image, ...)

    Returns
    -------
    `K` int64 indices of the kept boxes, by decreasing score. On a GPU the host waits for their number: see
    :func:`nms_fixed`.
    """
    scores = scores.detach() if scores.is_floating_point() else scores.double()
    groups = None if groups is None else groups.to(torch.int64)
    return _nms(boxes.detach(), scores, float(iou_threshold), n_max, groups)


def nms_fixed(
    boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int = -1, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute :func:`nms` with a result whose size does not depend on the boxes: the host does not wait for a GPU.

    Return int64 indices of the kept boxes by decreasing score, then -1, `min(n_max, N)` of them if there is a limit and
    no groups, else `N`; and the number of kept boxes, an int64 scalar.
    """
    scores = scores.detach() if scores.is_floating_point() else scores.double()
    groups = None if groups is None else groups.to(torch.int64)
    return _nms_fixed(boxes.detach(), scores, float(iou_threshold), n_max, groups)


_nms = define(
    "nms",
    reference.nms,
    lambda boxes, *rest: boxes.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.int64),
)
_nms_fixed = define(
    "nms_fixed",
    reference.nms_fixed,
    lambda boxes, scores, threshold, n_max, groups: (
        boxes.new_empty((reference.fixed_size(boxes.shape[0], n_max, groups),), dtype=torch.int64),
        boxes.new_empty((), dtype=torch.int64),
    ),
)


def nth_true(mask: Tensor, ranks: Tensor) -> Tensor:
    """Return the indices, int64 `K`, of the True entries of a mask `A` with these ranks `K`, 0 for the first."""
    return torch.searchsorted(mask.cumsum(0), ranks + 1)


def first_true(masks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the increasing indices `N x count` of the first True entries of rows `N x A`, and which of them exist."""
    ranks = torch.arange(1, count + 1, device=masks.device).expand(masks.shape[0], count).contiguous()
    index = torch.searchsorted(masks.cumsum(1), ranks)
    exists = index < masks.shape[1]
    return torch.where(exists, index, 0), exists


def random_subset(chosen: Tensor, count: int) -> Tensor:
    """Return at most `count` of the True entries of a mask `... x A`, at random by the generator of the device."""
    keys = torch.where(chosen, torch.rand(chosen.shape, device=chosen.device), -1.0)
    best = keys.topk(min(count, chosen.shape[-1]), sorted=False)
    return torch.zeros_like(chosen).scatter(-1, best.indices, best.values >= 0)


def rank_samples(positive: Tensor, negative: Tensor, most_positive: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample from positives and negatives, bool `... x A`, with torch's generator of the device.

    Return the positives of the sample, `... x A`, at most `most_positive`; the indices `... x K`, K = min(`number`, A),
    of these, of negatives in a random order, and of what is neither; and which are not neither, bool `... x K`.
    """
    positive = random_subset(positive, most_positive)
    # the number of negatives differs from image to image: rank them instead of counting
    keys = torch.where(negative, torch.rand(negative.shape, device=negative.device), -1.0)
    best = torch.where(positive, 2.0, keys).topk(min(number, positive.shape[-1]))
    return positive, best.indices, best.values >= 0


def best_scores(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` highest of `K` scores by decreasing score; lower index first among equals."""
    if 0 < count < scores.shape[0]:
        # NaN is the highest of all
        least = torch.topk(scores, count, sorted=False).values.nan_to_num(torch.inf, torch.inf, -torch.inf).min()
        above, equal = ~(scores <= least), scores == least
        chosen = above | (equal & (equal.cumsum(0) <= count - above.sum()))
        candidates = nth_true(chosen, torch.arange(count, device=scores.device))
        return candidates[torch.argsort(scores[candidates], descending=True, stable=True)]
    return torch.argsort(scores, descending=True, stable=True)
