"""Losses of the region proposal head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.heads.rpn.targets import BACKGROUND
from seamseg.ops.boxes import encode_boxes
from seamseg.ops.losses import smooth_l1


def rpn_losses(
    obj_logits: Tensor,
    bbx_logits: Tensor,
    anchors: Tensor,
    matches: Tensor,
    boxes: list[Tensor | None],
    sigma: float,
) -> tuple[Tensor, Tensor, int]:
    """Objectness and box loss (SPEC section 4 "RPN targets").

    Parameters
    ----------
    obj_logits, bbx_logits : `N x A` and `N x A x 4`
    anchors : `A x 4`
    matches : int64 `N x A` from :class:`seamseg.heads.rpn.targets.AnchorMatcher`
    boxes : ground-truth boxes of each image, `G x 4` or None
    sigma : of the smooth L1 loss

    Returns
    -------
    obj_loss : binary cross-entropy summed over the sampled anchors, over their number
    bbx_loss : smooth L1 summed over the positive anchors, over the same number
    count : that number

    Both losses are 0, with a graph, when nothing is sampled: ranks that train together run the same backward pass.
    """
    image, anchor = torch.nonzero(matches >= BACKGROUND, as_tuple=True)
    match = matches[image, anchor]
    count = match.shape[0]

    obj_loss = functional.binary_cross_entropy_with_logits(
        obj_logits[image, anchor].float(), (match >= 0).float(), reduction="sum"
    )

    positive = match >= 0
    image, anchor = image[positive], anchor[positive]
    wanted = [
        encode_boxes(anchors[anchor[image == i]], gt[matches[i, anchor[image == i]]])
        for i, gt in enumerate(boxes)
        if gt is not None
    ]
    codes = torch.cat(wanted) if wanted else anchors.new_zeros((0, 4))
    bbx_loss = smooth_l1(bbx_logits[image, anchor].float(), codes, sigma).sum()
    return obj_loss / max(count, 1), bbx_loss / max(count, 1), count
