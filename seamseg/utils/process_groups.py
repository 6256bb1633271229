"""Process groups of subsets of ranks, and `active_group` of the `inplace-abn` package."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed

MAX_GROUPS = 8
"""Size of the group cache of :func:`active_group`. A gloo group holds three threads and several file descriptors."""


_groups: OrderedDict[tuple[int, ...], Any] = OrderedDict()
"""Groups by their ranks, the most recently used last. Ranks outside of a group hold a placeholder, so that the order is
the same on all ranks."""


_world: object = None
"""The default group that `_groups` belongs to: groups become invalid with the process group they were created in."""


_timeout: timedelta | None = None


def set_group_timeout(timeout: timedelta | None) -> None:
    """Set the timeout of groups created from now on; None for the default of torch.

    A group does not inherit the timeout of the default group.
    """
    global _timeout
    _timeout = timeout


def new_group(ranks: Iterable[int], backend: str | None = None) -> distributed.ProcessGroup:
    """Create a process group of some ranks; a collective call of all ranks of the default group.

    `backend` defaults to that of the default group.
    """
    group = distributed.new_group(list(ranks), timeout=_timeout, backend=backend)
    # on other ranks it is a placeholder that is never used
    return cast("distributed.ProcessGroup", group)


def active_group(active: bool) -> distributed.ProcessGroup | None:
    """Return the process group of the ranks that call this with True.

    A collective call: every rank of the default group must make it, in the same order. The groups of the last
    :data:`MAX_GROUPS` sets of ranks are cached, because creating one is a collective call. The least recently
    used group is destroyed by all its ranks in the same call, as every rank goes through the same sequence of
    sets. The forward or backward pass of a layer with a destroyed group raises an error on all ranks of the group. So
    call this and `set_group` before each forward pass, and run the backward pass before :data:`MAX_GROUPS` other sets
    have followed.

    Parameters
    ----------
    active : whether this rank will run the layers that use the group

    Returns
    -------
    the group; None on an inactive rank, and when torch.distributed is not initialised
    """
    global _world
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    world = distributed.group.WORLD
    if _world is not world:
        _groups.clear()
        _world = world
    flags = torch.zeros(distributed.get_world_size(), dtype=torch.int32, device=_communication_device())
    flag = torch.tensor([int(active)], dtype=torch.int32, device=flags.device)
    distributed.all_gather_into_tensor(flags, flag)
    ranks = tuple(rank for rank, is_active in enumerate(flags.tolist()) if is_active)
    if len(ranks) == len(flags):
        return world
    if not ranks:
        return None
    if ranks not in _groups:
        while len(_groups) >= MAX_GROUPS:
            # on CUDA its work is done: the flags, which this rank has waited for, were computed after it
            distributed.destroy_process_group(_groups.popitem(last=False)[1])
        _groups[ranks] = new_group(ranks)
    _groups.move_to_end(ranks)
    return _groups[ranks] if active else None


def clear_groups() -> None:
    """Drop the cached groups; to be called before `destroy_process_group`.

    A group that outlives the default group is destroyed while the interpreter exits, when its threads may be gone.
    """
    global _world
    _groups.clear()
    _world = None


def _communication_device() -> torch.device:
    if "nccl" in distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
