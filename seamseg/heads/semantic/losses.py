"""Loss and targets of the semantic head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seamseg.ops.upsample import upsample_ohem_loss
from seamseg.panoptic_map import VOID


def semantic_target(masks: Tensor, categories: Tensor) -> Tensor:
    """Class of every pixel.

    Parameters
    ----------
    masks : id map `L x H x W` of L layers, 0 void
    categories : int64, the class of each id; entry 0 is void

    Returns
    -------
    int64 `H x W`: the class of the first layer that is not void there, 255 where all are
    """
    target = categories[masks[0]]
    for layer in masks[1:]:
        target = torch.where(target == VOID, categories[layer], target)
    return target


def semantic_loss(
    logits: Tensor,
    padded_size: tuple[int, int],
    targets: Sequence[Tensor],
    ohem: float | None,
) -> Tensor:
    """Mean over the images of the mean over their hardest pixels (SPEC section 4 "Semantic").

    Parameters
    ----------
    logits : `N x classes x h x w`
    padded_size : `(height, width)` that the logits are enlarged to
    targets : classes of each image, int64 `H x W` of its valid size, 255 void
    ohem : part of the pixels that counts; None or 1 for all of them
    """
    # differences of a few pixels' logits decide: full precision, also where the network runs in less
    with torch.autocast(logits.device.type, enabled=False):
        losses = [
            upsample_ohem_loss(image_logits, padded_size, (target.shape[0], target.shape[1]), target, ohem)
            for image_logits, target in zip(logits.float(), targets)
        ]
    return torch.stack(losses).mean()
