"""Operators on label and id maps in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.maps.idmaps import reference


def _check(op: str, *maps: Tensor) -> None:
    if any(one.is_floating_point() or one.is_complex() for one in maps):
        raise RuntimeError(f"{op}: expected an integer or bool tensor")
    if any(one.shape != maps[0].shape for one in maps):
        raise RuntimeError(f"{op}: id_map must have the shape of labels")


def extract_boxes(id_map: Tensor, n: int) -> Tensor:
    """See :func:`seamseg.ops.labels.extract_boxes`."""
    _check("extract_boxes", id_map)
    absent = id_map.new_full((n, 4), -1, dtype=torch.float32)
    if n == 0 or id_map.numel() == 0:
        return absent
    height, width = id_map.shape[-2:]
    flat = id_map.reshape(-1)
    index = ((flat >= 0) & (flat < n)).nonzero().squeeze(1)
    ids = flat[index].long()[:, None].expand(-1, 2)
    corners = torch.stack((index // width % height, index % width), 1)
    low = torch.full((n, 2), max(height, width) + 1, dtype=torch.int64, device=id_map.device)
    high = torch.full_like(low, -1)
    low.scatter_reduce_(0, ids, corners, "amin")
    high.scatter_reduce_(0, ids, corners + 1, "amax")
    boxes = torch.cat((low, high), 1).to(torch.float32)
    return torch.where(high[:, :1] < 0, absent, boxes)


def count_labels(labels: Tensor, n: int, id_map: Tensor | None) -> Tensor:
    """See :func:`seamseg.ops.labels.count_labels`."""
    _check("count_labels", labels, *(() if id_map is None else (id_map,)))
    if n < 0:
        raise RuntimeError("count_labels: n must be 0 to 2^24")
    wide = labels.long()
    counted = (wide >= 0) & (wide < n)
    if id_map is not None:
        counted &= id_map == 0
    # other labels are counted in an extra last bin: cheaper than removing them
    return torch.bincount(torch.where(counted, wide, n).flatten(), minlength=n + 1)[:n]


def fill_free(id_map: Tensor, labels: Tensor, ids: Tensor) -> None:
    """See :func:`seamseg.ops.labels.fill_free`."""
    _check("fill_free", id_map, labels)
    if ids.numel() == 0:
        return
    wide = labels.long()
    known = (wide >= 0) & (wide < ids.numel()) & (id_map == 0)
    id_map.copy_(torch.where(known, ids.to(id_map.dtype)[wide.clamp(0, ids.numel() - 1)], id_map))


def paste_masks_into(
    id_map: Tensor, masks: Tensor, boxes: Tensor, overlap_threshold: float, first_id: int, keep_empty: bool
) -> Tensor:
    """See :data:`seamseg.ops.labels.paste_masks_into`.

    On the host: many small dependent steps are faster there.
    """
    if first_id - 1 > torch.iinfo(id_map.dtype).max - boxes.shape[0]:
        raise RuntimeError("paste_masks_into: id_map cannot hold the ids of all instances")
    target = id_map.cpu()
    arrays = (target.numpy(), masks.cpu().numpy(), boxes.cpu().numpy())
    kept = reference.paste_masks(*arrays, overlap_threshold, keep_empty, first_id)
    if target is not id_map:
        id_map.copy_(target)
    return torch.from_numpy(kept).to(id_map.device)
