"""Losses of the ROI head (SPEC section 4 "ROI targets"). Without positives they are 0, with a graph: ranks that train
together run the same backward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.heads.roi.targets import IGNORED_PIXEL
from seamseg.ops.losses import smooth_l1


def class_loss(cls_logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of logits `M x (things + 1)` and labels `M` (0 = background), weighted by `M` weights."""
    if weights is None:
        return functional.cross_entropy(cls_logits.float(), labels)
    losses = functional.cross_entropy(cls_logits.float(), labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def box_loss(bbx_logits: Tensor, labels: Tensor, codes: Tensor, sigma: float, weights: Tensor | None = None) -> Tensor:
    """Smooth L1 of the true class's code, summed over the positives, over the number of samples.

    Parameters
    ----------
    bbx_logits : `M x things x 4`
    labels : int64 `M`, 0 = background
    codes : `M x 4`; those of the background are not looked at
    sigma : of the smooth L1 loss
    weights : `M`, the number of samples is their sum; None for 1 each. Positives have weight 1
    """
    rows = torch.arange(labels.shape[0], device=labels.device)
    said = bbx_logits[rows, (labels - 1).clamp(min=0)].float()
    loss = torch.where((labels > 0)[:, None], smooth_l1(said, codes, sigma), 0.0).sum()
    return loss / (labels.shape[0] if weights is None else weights.sum().clamp(min=1))


def mask_loss(msk_logits: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy of the true class's mask, mean over the pixels that are not ignored, and their number.

    Parameters
    ----------
    msk_logits : `P x things x h x w`
    labels : int64 `P`; of background (0) all pixels are ignored
    targets : `P x h x w` from :func:`seamseg.heads.roi.targets.mask_targets`
    """
    said = msk_logits[torch.arange(labels.shape[0], device=labels.device), (labels - 1).clamp(min=0)].float()
    counts = (targets != IGNORED_PIXEL).float()
    loss = functional.binary_cross_entropy_with_logits(said, targets.clamp(min=0), weight=counts, reduction="sum")
    count = counts.sum()
    return loss / count.clamp(min=1), count
