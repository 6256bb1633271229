"""Pasting instance masks, on the host: many small dependent steps are faster there."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.idmaps import reference


def paste_masks_into(
    id_map: Tensor, masks: Tensor, boxes: Tensor, overlap_threshold: float, first_id: int, keep_empty: bool
) -> Tensor:
    """See :func:`seamseg.ops.paste.paste_masks_into`, of float32 probabilities."""
    if first_id - 1 > torch.iinfo(id_map.dtype).max - boxes.shape[0]:
        raise RuntimeError("paste_masks_into: id_map cannot hold the ids of all instances")
    target = id_map.cpu()
    arrays = (target.numpy(), masks.cpu().numpy(), boxes.cpu().numpy())
    kept = reference.paste_masks(*arrays, overlap_threshold, keep_empty, first_id)
    if target is not id_map:
        id_map.copy_(target)
    return torch.from_numpy(kept).to(id_map.device)
