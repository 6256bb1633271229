"""Losses of the region proposal head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.heads.rpn.targets import BACKGROUND
from seamseg.heads.select import first_true
from seamseg.ops.boxes import encode_boxes
from seamseg.ops.losses import smooth_l1


def rpn_losses(
    obj_logits: Tensor,
    bbx_logits: Tensor,
    anchors: Tensor,
    matches: Tensor,
    boxes: Sequence[Tensor | None],
    sigma: float,
    limit: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Objectness and box loss (SPEC section 4 "RPN targets").

    Parameters
    ----------
    obj_logits, bbx_logits : `N x A` and `N x A x 4`
    anchors : `A x 4`
    matches : int64 `N x A` from :class:`seamseg.heads.rpn.targets.AnchorMatcher`
    boxes : ground-truth boxes of each image, `G x 4` or None
    sigma : of the smooth L1 loss
    limit : no more than this many anchors of an image are sampled; None if that is not known, which takes memory

    Returns
    -------
    obj_loss : binary cross-entropy summed over the sampled anchors, over their number
    bbx_loss : smooth L1 summed over the positive anchors, over the same number
    count : that number, int64

    Both losses are 0, with a graph, when nothing is sampled: ranks that train together run the same backward pass.
    """
    rows, counts = first_true(matches >= BACKGROUND, min(limit or matches.shape[1], matches.shape[1]))
    image = torch.arange(matches.shape[0], device=matches.device)[:, None]
    match = matches[image, rows]
    positive = counts & (match >= 0)
    count = counts.sum()

    said = obj_logits[image, rows].float()
    errors = functional.binary_cross_entropy_with_logits(said, positive.float(), reduction="none")
    obj_loss = torch.where(counts, errors, 0.0).sum()

    codes = torch.stack([_codes(anchors[row], gt, m) for row, gt, m in zip(rows, boxes, match)])
    errors = smooth_l1(bbx_logits[image, rows].float(), codes, sigma)
    bbx_loss = torch.where(positive[:, :, None], errors, 0.0).sum()
    return obj_loss / count.clamp(min=1), bbx_loss / count.clamp(min=1), count


def _codes(anchors: Tensor, boxes: Tensor | None, match: Tensor) -> Tensor:
    """What the anchors of an image should say; anything for those without a match."""
    if boxes is None or boxes.shape[0] == 0:
        return torch.zeros_like(anchors)
    return encode_boxes(anchors, boxes[match.clamp(min=0)])
