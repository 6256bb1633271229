"""Selection of rows without reading their number from the device, for which the host would wait."""

from __future__ import annotations

import torch
from torch import Tensor


def nth_true(mask: Tensor, ranks: Tensor) -> Tensor:
    """Return the indices of the True entries of the given ranks.

    Parameters
    ----------
    mask : bool `A`
    ranks : int64 `K`, 0 for the first True

    Returns
    -------
    int64 `K`; A for a rank beyond the last True
    """
    return torch.searchsorted(mask.cumsum(0), ranks + 1)


def first_true(masks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the first True entries of each row.

    Parameters
    ----------
    masks : bool `N x A`
    count : number of entries of a row

    Returns
    -------
    index : int64 `N x count`, increasing; 0 where there are fewer
    exists : bool `N x count`
    """
    ranks = torch.arange(1, count + 1, device=masks.device).expand(masks.shape[0], count).contiguous()
    index = torch.searchsorted(masks.cumsum(1), ranks)
    exists = index < masks.shape[1]
    return torch.where(exists, index, 0), exists


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device; the host does not wait for the copy."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def random_subset(chosen: Tensor, count: int) -> Tensor:
    """Sample from the True entries uniformly, without replacement, with torch's generator of the device.

    Parameters
    ----------
    chosen : bool `... x A`
    count : size of the sample; all entries if there are fewer

    Returns
    -------
    bool `... x A`, True on the sample
    """
    keys = torch.where(chosen, torch.rand(chosen.shape, device=chosen.device), -1.0)
    best = keys.topk(min(count, chosen.shape[-1]), sorted=False)
    return torch.zeros_like(chosen).scatter(-1, best.indices, best.values >= 0)
