"""Choosing rows without asking the device how many there are: on a GPU the host would wait for the answer."""

from __future__ import annotations

import torch
from torch import Tensor


def nth_true(mask: Tensor, ranks: Tensor) -> Tensor:
    """Where the entries of some ranks are among those that are True.

    Parameters
    ----------
    mask : bool `A`
    ranks : int64 `K`, 0 for the first True

    Returns
    -------
    int64 `K`; A for a rank that there is not
    """
    return torch.searchsorted(mask.cumsum(0), ranks + 1)


def first_true(masks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Where the first entries are that are True, row by row.

    Parameters
    ----------
    masks : bool `N x A`
    count : how many of a row

    Returns
    -------
    index : int64 `N x count`, rising; 0 where there are fewer
    is_there : bool `N x count`
    """
    ranks = torch.arange(1, count + 1, device=masks.device).expand(masks.shape[0], count).contiguous()
    index = torch.searchsorted(masks.cumsum(1), ranks)
    is_there = index < masks.shape[1]
    return torch.where(is_there, index, 0), is_there


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Values of the host on a device; the host does not wait for the copy."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def draw(chosen: Tensor, count: int) -> Tensor:
    """Draw from the entries that are True, each subset as likely as another.

    Draws come from torch's generator of the device.

    Parameters
    ----------
    chosen : bool `... x A`
    count : how many; all if there are fewer

    Returns
    -------
    bool `... x A`, those that were drawn
    """
    keys = torch.where(chosen, torch.rand(chosen.shape, device=chosen.device), -1.0)
    best = keys.topk(min(count, chosen.shape[-1]), sorted=False)
    return torch.zeros_like(chosen).scatter(-1, best.indices, best.values >= 0)
