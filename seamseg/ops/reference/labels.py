"""Counting the labels of a map and putting them where an id map is free, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def count_labels(labels: Tensor, n: int, id_map: Tensor | None) -> Tensor:
    """See :func:`seamseg.ops.labels.count_labels`; arguments are taken as checked."""
    wide = labels.long()
    wanted = (wide >= 0) & (wide < n)
    if id_map is not None:
        wanted &= id_map == 0
    # what is not wanted is counted too, behind the rest: cheaper than taking it out
    return torch.bincount(torch.where(wanted, wide, n).flatten(), minlength=n + 1)[:n]


def fill_free(id_map: Tensor, labels: Tensor, ids: Tensor) -> None:
    """See :func:`seamseg.ops.labels.fill_free`."""
    if ids.numel() == 0:
        return
    wide = labels.long()
    known = (wide >= 0) & (wide < ids.numel()) & (id_map == 0)
    id_map.copy_(torch.where(known, ids.to(id_map.dtype)[wide.clamp(0, ids.numel() - 1)], id_map))
