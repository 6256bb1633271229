"""Process groups: those of the trainer, and `active_group` of the `inplace-abn` package."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed

MAX_GROUPS = 8
"""Sets of ranks whose groups :func:`active_group` keeps. A gloo group holds three threads and more file descriptors."""


_groups: OrderedDict[tuple[int, ...], Any] = OrderedDict()
"""By their ranks, the one that was used last at the end. On a rank outside the set stands a mark instead of the group,
so that the order is the same on all ranks."""


_world: object = None
"""The world that `_groups` belongs to: groups die with the process group they were made in."""


_timeout: timedelta | None = None


def limit_waiting(timeout: timedelta | None) -> None:
    """How long ranks of groups that are made from now on wait for each other; None for torch's own limit.

    A group does not take over the limit of its world.
    """
    global _timeout
    _timeout = timeout


def new_group(ranks: Iterable[int], backend: str | None = None) -> distributed.ProcessGroup:
    """A process group of these ranks of the world: a collective call of all its ranks, these or not.

    `backend` is that of the world if None.
    """
    group = distributed.new_group(list(ranks), timeout=_timeout, backend=backend)
    # for a rank that is none of them it is a mark, which nobody uses
    return cast("distributed.ProcessGroup", group)


def active_group(active: bool) -> distributed.ProcessGroup | None:
    """The process group of the ranks that call this with True.

    A collective call: every rank of the world must make it, in the same order. The groups of the last
    :data:`MAX_GROUPS` sets of ranks are kept, because making one is itself a collective call of all ranks. The group
    that was used least recently is destroyed, by all its ranks in the same call: every rank meets the same sequence of
    sets. A layer that is run with a destroyed group, forwards or backwards, raises an error, on all ranks of the group.
    So call this and `set_group` before each forward pass, and run a backward pass before :data:`MAX_GROUPS` other sets
    have followed.

    Parameters
    ----------
    active : whether this rank is going to run the layers that need the group

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
            # on CUDA its work is done: the flags, which this rank has waited for, came after it
            distributed.destroy_process_group(_groups.popitem(last=False)[1])
        _groups[ranks] = new_group(ranks)
    _groups.move_to_end(ranks)
    return _groups[ranks] if active else None


def forget_groups() -> None:
    """Let go of the cached groups: call it before `destroy_process_group`.

    A group that outlives its world is torn down while the interpreter exits, when its threads may be gone.
    """
    global _world
    _groups.clear()
    _world = None


def _communication_device() -> torch.device:
    if "nccl" in distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
