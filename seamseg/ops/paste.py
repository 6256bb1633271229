"""Pasting instance masks onto the image, crop by crop (docs/contract.md, section 4 "Fusion")."""

from __future__ import annotations

import torch
from torch import Tensor

from ._library import INTEGERS, check_boxes, check_same_device, define, describe
from .reference.paste import paste_masks_into as paste_masks_into_plain


def paste_masks_into(
    id_map: Tensor,
    mask_logits: Tensor,
    boxes: Tensor,
    overlap_threshold: float,
    first_id: int = 1,
    keep_empty: bool = False,
) -> Tensor:
    """Paste instances one after the other, each onto the pixels still free.

    An instance is dropped if more than the fraction `overlap_threshold` of its pixels are taken. The host does not wait
    for the GPU.

    Parameters
    ----------
    id_map : `H x W` integer (not bool), 0 where free; written in place
    mask_logits : `K x h x w`, floating, best score first
    boxes : `K x 4`, image pixels
    overlap_threshold : largest fraction of an instance that others may have taken
    first_id : id of the first instance pasted, at least 1; the others follow, and `id_map` must be able to hold K of
        them
    keep_empty : assign an id to an instance without pixels, as the original implementation does

    Returns
    -------
    `K` bool, whether each instance got an id; these are numbered in order
    """
    if not isinstance(id_map, Tensor) or id_map.dim() != 2 or id_map.dtype not in INTEGERS:
        raise ValueError(f"paste_masks_into: id_map must be an integer H x W, got {describe(id_map)}")
    check_boxes("paste_masks_into", "boxes", boxes)
    floating = isinstance(mask_logits, Tensor) and mask_logits.is_floating_point()
    if not floating or mask_logits.dim() != 3 or mask_logits.shape[0] != boxes.shape[0]:
        raise ValueError(
            f"paste_masks_into: mask_logits must be floating {boxes.shape[0]} x h x w, got {describe(mask_logits)}"
        )
    check_same_device("paste_masks_into", id_map=id_map, mask_logits=mask_logits, boxes=boxes)
    largest = torch.iinfo(id_map.dtype).max
    if not 0 < first_id <= largest:
        raise ValueError(f"paste_masks_into: first_id must be 1 to {largest}, the largest id of id_map, got {first_id}")
    masks = mask_logits.detach().float().sigmoid()
    return paste_probabilities_into(id_map, masks, boxes.detach().float(), overlap_threshold, first_id, keep_empty)


def _fake(
    id_map: Tensor, masks: Tensor, boxes: Tensor, overlap_threshold: float, first_id: int, keep_empty: bool
) -> Tensor:
    return masks.new_empty(masks.shape[0], dtype=torch.bool)


paste_probabilities_into = define("paste_masks_into", paste_masks_into_plain, _fake)
"""The operator, of float32 probabilities in place of logits; it checks shapes and dtypes itself."""
