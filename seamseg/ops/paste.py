"""Pasting instance masks onto the image, crop by crop (SPEC section 4 "Fusion")."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._check import check_boxes, describe
from .roi_sampling import axis_taps

Region = tuple[int, int, int, int]


def paste_mask(mask_logits: Tensor, box: Tensor, size: tuple[int, int]) -> tuple[Tensor, Region]:
    """The pixels of one instance: its mask resampled onto the image plane, where the probability exceeds 0.5.

    Equals ROI sampling of `sigmoid(mask_logits)` with the inverted box, bilinear with zero padding, but computes only
    the pixels whose centre can lie in the box, as the product of two small matrices with the mask.

    Parameters
    ----------
    mask_logits : `h x w` (28 x 28), logits
    box : `4`, image pixels
    size : (height, width) of the image

    Returns
    -------
    crop : bool, the pixels of the region
    region : `(y0, x0, y1, x1)`, where the crop belongs; of size 0 where box and image do not meet
    """
    if mask_logits.dim() != 2 or not mask_logits.is_floating_point():
        raise ValueError(f"paste_mask: mask_logits must be a floating h x w, got {describe(mask_logits)}")
    check_boxes("paste_mask", "box", box, dims=1)
    corners = box.tolist()
    y0, y1, rows = _axis(corners[0], corners[2], size[0], mask_logits, 0)
    x0, x1, columns = _axis(corners[1], corners[3], size[1], mask_logits, 1)
    probability = rows @ mask_logits.sigmoid() @ columns.T
    return probability > 0.5, (y0, x0, y1, x1)


def paste_masks_into(
    id_map: Tensor,
    mask_logits: Tensor,
    boxes: Tensor,
    overlap_threshold: float,
    first_id: int = 1,
    keep_empty: bool = False,
) -> list[int]:
    """Paste instances one after the other, each onto the pixels still free.

    An instance of whose pixels more than `overlap_threshold` are taken is left out.

    Parameters
    ----------
    id_map : `H x W` integer, 0 where free; written in place
    mask_logits : `K x h x w`, best score first
    boxes : `K x 4`, image pixels
    overlap_threshold : largest part of an instance that others may have taken
    first_id : id of the first instance pasted; the others follow
    keep_empty : give an id to an instance that has no pixel, as the original implementation does

    Returns
    -------
    which instances got an id, in this order
    """
    if id_map.dim() != 2 or id_map.is_floating_point():
        raise ValueError(f"paste_masks_into: id_map must be an integer H x W, got {describe(id_map)}")
    check_boxes("paste_masks_into", "boxes", boxes)
    if mask_logits.dim() != 3 or mask_logits.shape[0] != boxes.shape[0]:
        raise ValueError(f"paste_masks_into: mask_logits must be {boxes.shape[0]} x h x w, got {describe(mask_logits)}")
    # many small steps that depend on each other: faster on the host
    target = id_map.cpu()
    mask_logits, boxes = mask_logits.detach().cpu(), boxes.detach().cpu()
    size = (int(id_map.shape[0]), int(id_map.shape[1]))
    kept: list[int] = []
    for number, (logits, box) in enumerate(zip(mask_logits, boxes)):
        crop, (y0, x0, y1, x1) = paste_mask(logits, box, size)
        window = target[y0:y1, x0:x1]
        area = int(crop.sum())
        free = crop & (window == 0)
        free_area = int(free.sum())
        if area and (area - free_area) / area > overlap_threshold:
            continue
        if free_area == 0 and not keep_empty:
            continue
        window.masked_fill_(free, first_id + len(kept))
        kept.append(number)
    if target is not id_map:
        id_map.copy_(target)
    return kept


def _axis(low: float, high: float, size: int, mask: Tensor, dim: int) -> tuple[int, int, Tensor]:
    """The pixels along an axis that a box can reach, and the weights with which each reads the mask's cells."""
    cells = mask.shape[dim]
    extent = high - low
    if not (math.isfinite(extent) and extent > 0) or high <= 0 or low >= size:
        return 0, 0, mask.new_zeros(0, cells)
    # below half a cell outside the probability is under .5; one pixel more covers rounding
    start, stop = max(0, math.floor(low) - 1), min(size, math.ceil(high) + 1)
    edges = mask.new_tensor([low, high], dtype=torch.float32)
    span = edges[1] - edges[0]
    begin, end = -edges[0] / span * cells, (size - edges[0]) / span * cells
    centres = (torch.arange(start, stop, device=mask.device, dtype=torch.float32) + 0.5) / size
    taps, weights = axis_taps(begin + centres * (end - begin), cells, "bilinear", "zero")
    matrix = mask.new_zeros(stop - start, cells).scatter_add_(1, taps, weights.to(mask.dtype))
    return start, stop, matrix
