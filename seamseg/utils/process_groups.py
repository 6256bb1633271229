"""Process groups of subsets of ranks, and `active_group` of the `inplace-abn` package."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import cast

import torch
from torch import distributed

from seamseg.utils.distributed import group_timeout


def new_group(ranks: Iterable[int], backend: str | None = None) -> distributed.ProcessGroup:
    """Create a process group of some ranks, which waits as long as the default group; a collective call of all ranks.

    `backend` defaults to that of the default group.
    """
    group = distributed.new_group(list(ranks), timeout=group_timeout(), backend=backend)
    # on other ranks it is a placeholder that is never used
    return cast("distributed.ProcessGroup", group)


def active_group(active: bool) -> distributed.ProcessGroup | None:
    """Return the process group of the ranks that call this with True.

    A collective call: every rank of the default group must make it, in the same order. The group of each set of ranks
    is created once; a gloo group holds three threads and several file descriptors.

    Parameters
    ----------
    active : whether this rank will run the layers that use the group

    Returns
    -------
    the group; None on an inactive rank, and when torch.distributed is not initialised
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    flags = torch.zeros(distributed.get_world_size(), dtype=torch.int32, device=_communication_device())
    flag = torch.tensor([int(active)], dtype=torch.int32, device=flags.device)
    distributed.all_gather_into_tensor(flags, flag)
    ranks = tuple(rank for rank, is_active in enumerate(flags.tolist()) if is_active)
    world = distributed.group.WORLD
    if len(ranks) == len(flags):
        return world
    group = _group_of(world, ranks) if ranks else None
    return group if active else None


@cache
def _group_of(world: object, ranks: tuple[int, ...]) -> distributed.ProcessGroup:
    return new_group(ranks)


def clear_groups() -> None:
    """Drop the cached groups; to be called before `destroy_process_group`.

    A group that outlives the default group is destroyed while the interpreter exits, when its threads may be gone.
    """
    _group_of.cache_clear()


def _communication_device() -> torch.device:
    if "nccl" in distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
