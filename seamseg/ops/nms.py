"""Non-maximum suppression: greedy, exact, many groups in one call (docs/contract.md, section 4)."""

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


def _fake_fixed(
    boxes: Tensor, scores: Tensor, iou_threshold: float, n_max: int, groups: Tensor | None
) -> tuple[Tensor, Tensor]:
    size = reference.fixed_size(boxes.shape[0], n_max, groups)
    return boxes.new_empty((size,), dtype=torch.int64), boxes.new_empty((), dtype=torch.int64)


_nms = define(
    "nms",
    reference.nms,
    lambda boxes, *rest: boxes.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.int64),
)
_nms_fixed = define("nms_fixed", reference.nms_fixed, _fake_fixed)
