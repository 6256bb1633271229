"""Pasting instance masks, in plain torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

Region = tuple[int, int, int, int]


class _Axis(NamedTuple):
    """Pixels `start .. stop` along an axis, and for each the two cells of the mask it reads and their weights."""

    start: int
    stop: int
    cells: tuple[Tensor, Tensor]
    weights: tuple[Tensor, Tensor]


def paste_mask(mask: Tensor, box: list[float], size: tuple[int, int]) -> tuple[Tensor, Region]:
    """See :func:`seamseg.ops.paste.paste_mask`, of a float32 probability; arguments are not checked.

    Products are computed in float64, where those of float32 are exact: rounding does not depend on the order of sums.
    """
    y = _axis(box[0], box[2], size[0], mask.shape[0], mask.device)
    x = _axis(box[1], box[3], size[1], mask.shape[1], mask.device)
    wide = mask.double()
    across = (wide[:, x.cells[0]] * x.weights[0] + wide[:, x.cells[1]] * x.weights[1]).float().double()
    down = across[y.cells[0]] * y.weights[0][:, None] + across[y.cells[1]] * y.weights[1][:, None]
    return down > 0.5, (y.start, x.start, y.stop, x.stop)


def paste_masks_into(
    id_map: Tensor, masks: Tensor, boxes: Tensor, overlap_threshold: float, first_id: int, keep_empty: bool
) -> Tensor:
    """See :func:`seamseg.ops.paste.paste_masks_into`, of float32 probabilities."""
    if first_id - 1 > torch.iinfo(id_map.dtype).max - boxes.shape[0]:
        raise RuntimeError("paste_masks_into: id_map cannot hold the ids of all instances")
    # many small dependent steps are faster on the host
    target, masks = id_map.cpu(), masks.cpu()
    size = (int(id_map.shape[0]), int(id_map.shape[1]))
    number, kept = first_id, []
    for mask, box in zip(masks, boxes.tolist()):
        crop, (y0, x0, y1, x1) = paste_mask(mask, box, size)
        window = target[y0:y1, x0:x1]
        area = int(crop.sum())
        free = crop & (window == 0)
        free_area = int(free.sum())
        overlaps = area > 0 and (area - free_area) / area > overlap_threshold
        kept.append(not overlaps and (free_area > 0 or keep_empty))
        if kept[-1]:
            window.masked_fill_(free, number)
            number += 1
    if target is not id_map:
        id_map.copy_(target)
    return torch.tensor(kept, dtype=torch.bool, device=id_map.device)


def _axis(low: float, high: float, size: int, cells: int, device: torch.device) -> _Axis:
    """Compute the pixels along an axis that a box can reach, for bilinear sampling of the mask, which is 0 outside."""
    start, stop = 0, 0
    if math.isfinite(high - low) and high > low and high > 0 and low < size and cells > 0:
        # beyond half a cell outside the probability is below .5; one pixel more covers rounding
        start, stop = max(0, math.floor(low) - 1), min(size, math.ceil(high) + 1)
    edges = torch.tensor([low, high], dtype=torch.float32, device=device)
    span = edges[1] - edges[0]
    begin, end = -edges[0] / span * cells, (size - edges[0]) / span * cells
    centres = (torch.arange(start, stop, device=device, dtype=torch.float32) + 0.5) / size
    s = torch.nan_to_num(begin + centres * (end - begin), nan=-2.0).clamp(-2, cells + 2)
    k = (s - 0.5).floor()
    fraction = (s - 0.5 - k).double()
    first = k.long()
    taps, shares = (first, first + 1), ((1 - fraction).float().double(), fraction)
    inside = [share * ((tap >= 0) & (tap < cells)) for tap, share in zip(taps, shares)]
    return _Axis(start, stop, (taps[0].clamp(0, cells - 1), taps[1].clamp(0, cells - 1)), (inside[0], inside[1]))
