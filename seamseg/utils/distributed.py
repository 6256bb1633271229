"""Join the process group of torchrun's environment; collectives that also work in a single process.

Any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT is supported; without them there is one
process and no group. Collectives of Python objects and of CPU tensors go through gloo, those of CUDA tensors through
NCCL; with SEAMSEG_CUDA_BACKEND=gloo also through gloo, which is slower, but lets several processes share one GPU.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from seamseg.utils.errors import InputError, SeamsegError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
T = TypeVar("T")
R = TypeVar("R")

_BACKEND_VARIABLE = "SEAMSEG_CUDA_BACKEND"
_TIMEOUT_VARIABLE = "SEAMSEG_TIMEOUT_MINUTES"
_TIMEOUT_MINUTES = 10
"""Longer than any work of one process for which others wait: a snapshot on a slow disk, torch.compile at the start."""
_LONG_TIMEOUT_DAYS = 30
_LAST_WORDS_SECONDS = 5
"""How long the cause is waited for of a process that has ended."""
_PEER_FAILURE_WORDS = ("gloo", "NCCL", "peer", "Broken pipe", "timed out", "Timed out")
"""Parts of messages of errors that another process has caused."""


class CollectiveError(SeamsegError):
    """An error that all processes raise at the same point, by agreement, and outside of collective calls."""


class LostConnection(SeamsegError):
    """Another process has ended, or kept this one waiting for too long."""


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


@dataclass(frozen=True)
class World:
    """Rank of this process among `size`, and its device; None without torch. Rank 0 prints and writes shared files."""

    rank: int = 0
    size: int = 1
    device: Any = field(default_factory=_cpu)


def process_count() -> int:
    """Return the number of processes started by the launcher; 1 without one."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def local_rank() -> int:
    """Return the number of this process on its machine; 0 without a launcher."""
    rank = os.environ.get("LOCAL_RANK", "0")
    return int(rank) if rank.isdigit() and process_count() > 1 else 0


def is_main_process() -> bool:
    """Return whether this process prints and writes the shared files."""
    # a single process is the main one, whatever its RANK
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def choose_device(name: str | torch.device = "auto", local_rank: int = 0) -> torch.device:
    """Return the device of a name: auto (a GPU if there is one), cpu, cuda or cuda:N; InputError if there is none."""
    import torch

    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.lower().startswith("openvino"):
        raise InputError(f"`device={name}`: only for exported networks; use `seamseg export` first")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"`device={name}`: not a device, use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"`device={name}`: PyTorch finds no GPU; use `device=cpu`, or run `seamseg doctor`")
        index = local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise InputError(
                f"`device={name}`: process {local_rank} needs GPU {index}, "
                f"there are {torch.cuda.device_count()}; start fewer processes or use `device=cpu`"
            )
        return torch.device("cuda", index)
    return device


def _environment() -> tuple[int, int, int]:
    """Return rank, world size and local rank from the environment of a launcher."""
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        if not 0 <= rank < size:
            raise ValueError(f"RANK={rank}")
    except (LookupError, ValueError) as error:
        raise InputError(
            f"the environment sets WORLD_SIZE, but RANK, MASTER_ADDR or MASTER_PORT is missing or wrong ({error}); "
            "start with torchrun"
        ) from None
    return rank, size, local_rank


def group_timeout() -> timedelta:
    """Return how long a collective call waits; InputError if the environment has no such number."""
    value = os.environ.get(_TIMEOUT_VARIABLE, str(_TIMEOUT_MINUTES))
    try:
        minutes = float(value)
    except ValueError:
        minutes = 0.0
    if minutes <= 0:
        raise InputError(f"{_TIMEOUT_VARIABLE}={value}: must be a positive number of minutes")
    return timedelta(minutes=minutes)


@contextmanager
def distributed(device: str | None = "auto") -> Iterator[World]:
    """Join the launcher's process group within a `with` block; a single process joins none.

    `auto` and `cuda` select the GPU with the index of the local rank. With None, for a network without torch, torch is
    imported for several processes only.

    A collective call raises an error as soon as another process has died, or after waiting for one longer than
    SEAMSEG_TIMEOUT_MINUTES (10). The process then ends without further communication; the launcher ends or restarts the
    others. InputError if the environment is wrong; LostConnection if the others cannot be reached, or one fails.
    """
    rank, size, local_rank = (0, 1, 0) if os.environ.get("WORLD_SIZE", "1") == "1" else _environment()
    world = World(rank, size, None if device is None else choose_device(device, local_rank))
    if world.device is not None and world.device.type == "cuda":
        import torch

        torch.cuda.set_device(world.device)
    if size == 1:
        yield world
        return
    backend, timeout = "gloo", group_timeout()
    if world.device is not None and world.device.type == "cuda":
        backend = os.environ.get(_BACKEND_VARIABLE, "nccl")
        if backend not in ("nccl", "gloo"):
            raise InputError(f"{_BACKEND_VARIABLE}={backend}: must be nccl or gloo")
        backend = f"cpu:gloo,cuda:{backend}"
    try:
        _dist().init_process_group(backend, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise LostConnection(f"process {rank} of {size} cannot join the others at {address}: {reason}") from error
    try:
        yield world
    except BaseException as error:
        # destroying NCCL communicators can hang while another process is inside a collective call; gloo does not hang,
        # and after an error of all processes none of them is inside a collective call
        if world.device is None or world.device.type == "cpu" or isinstance(error, CollectiveError):
            _leave()
        if isinstance(error, RuntimeError) and (words := _peer_failure(error)) is not None:
            raise LostConnection(
                f"process {rank} of {size} lost its connection to the others: one has ended, see its message, or "
                f"kept this one waiting for {timeout.total_seconds() / 60:g} minutes ({_TIMEOUT_VARIABLE}) "
                f"({words})"
            ) from error
        raise
    else:
        _leave()


def run_in_processes(count: int, function: Callable[[T], R], argument: T) -> R:
    """Call a function in `count` processes of this machine that form a group on the CPU; this one is the first.

    Each has an equal share of the cores. The function, which is importable by name, joins the group with
    :func:`distributed`. Its argument is pickled; its result in this process is returned.
    """
    import socket

    import torch
    from torch.multiprocessing import get_context, start_processes

    if count == 1:
        return function(argument)
    before, all_threads = dict(os.environ), torch.get_num_threads()
    threads = max(all_threads // count, 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    # an outer torchrun would be asked for the store
    group = {
        **address,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    os.environ.update(group, RANK="0", LOCAL_RANK="0")
    started = get_context("spawn").Semaphore(0)
    arguments = (group, threads, started, function, argument)
    others = start_processes(_member, arguments, count - 1, join=False, start_method="spawn")
    try:
        for process in others.processes:
            # such as of a script that starts processes where it is imported; to join their group would take minutes
            while not started.acquire(timeout=0.5):
                if not process.is_alive():
                    raise LostConnection("a process has ended")
        torch.set_num_threads(threads)
        return function(argument)
    except BaseException as error:
        if isinstance(error, LostConnection):
            _raise_first(others)
        for process in others.processes:
            # also one that is stopped or handles SIGTERM
            process.terminate()
            process.join(_LAST_WORDS_SECONDS)
            process.kill()
        raise
    finally:
        torch.set_num_threads(all_threads)
        os.environ.clear()
        os.environ.update(before)
        for process in others.processes:
            process.join()


def _member(
    number: int,
    group: dict[str, str],
    threads: int,
    started: Any,
    function: Callable[[T], object],
    argument: T,
) -> None:
    """Call a function in a process that :func:`run_in_processes` has started."""
    import torch

    os.environ.update(group, RANK=str(number + 1), LOCAL_RANK=str(number + 1))
    torch.set_num_threads(threads)
    started.release()
    function(argument)


def _raise_first(others: Any) -> None:
    """Raise the error of the first process that has failed, if any does so soon."""
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

    try:
        others.join(_LAST_WORDS_SECONDS)
    except ProcessRaisedException as error:
        # the last line of its traceback; errors of ours without their type
        reason = re.sub(r"^seamseg[\w.]*: ", "", str(error).strip().splitlines()[-1])
        raise SeamsegError(f"process {error.error_index + 1}: {reason}") from error
    except ProcessExitedException as error:
        code = error.exit_code
        how = f"was ended by signal {-code}" if code < 0 else f"has ended with code {code}"
        raise SeamsegError(f"process {error.error_index + 1} {how}") from error


def _dist() -> Any:
    """Import torch.distributed, which takes seconds, only if there are several processes."""
    import torch.distributed

    return torch.distributed


def _peer_failure(error: RuntimeError) -> str | None:
    """Return torch's message on an error that another process has caused, without its advice; None for others."""
    text = str(error).strip()
    if not isinstance(error, _dist().DistError) and not any(word in text for word in _PEER_FAILURE_WORDS):
        return None
    # without the location in torch's sources
    words = re.sub(r"^(\[[^]]*\]:?\s*)+", "", text.splitlines()[0]) or text
    return words.split(". ")[0].strip()[:200]


def _leave() -> None:
    # a group that outlives the default group is destroyed while the interpreter exits, when its threads may be gone
    _group_of.cache_clear()
    _dist().destroy_process_group()
    # DDP holds groups in reference cycles; their threads must end now: ending them at interpreter exit can abort
    gc.collect()


def new_group(ranks: Iterable[int], backend: str | None = None) -> ProcessGroup:
    """Create a process group of some ranks, which waits as long as the default group; a collective call of all ranks.

    `backend` defaults to that of the default group.
    """
    group: ProcessGroup = _dist().new_group(list(ranks), timeout=group_timeout(), backend=backend)
    return group


def active_group(active: bool) -> ProcessGroup | None:
    """Return the process group of the ranks that call this with True, as of the `inplace-abn` package.

    A collective call: every rank of the default group must make it, in the same order. The group of each set of ranks
    is created once; a gloo group holds three threads and several file descriptors.

    Parameters
    ----------
    active : whether this rank will run the layers that use the group

    Returns
    -------
    the group; None on an inactive rank, and when torch.distributed is not initialised
    """
    dist = _dist()
    if not dist.is_available() or not dist.is_initialized():
        return None
    import torch

    on_gpu = "nccl" in dist.get_backend()
    flag = torch.tensor([int(active)], dtype=torch.int32, device=torch.cuda.current_device() if on_gpu else "cpu")
    flags = flag.new_zeros(dist.get_world_size())
    dist.all_gather_into_tensor(flags, flag)
    ranks = tuple(rank for rank, is_active in enumerate(flags.tolist()) if is_active)
    world = dist.group.WORLD
    if len(ranks) == len(flags):
        return world
    group = _group_of(world, ranks) if ranks else None
    return group if active else None


@cache
def _group_of(world: object, ranks: tuple[int, ...]) -> ProcessGroup:
    return new_group(ranks)


def barrier(world: World) -> None:
    """Wait until every process has called this."""
    if world.size > 1:
        import torch

        # a sum over gloo rather than a barrier of torch: the latter would first occupy a GPU, and warn
        _dist().all_reduce(torch.zeros(1))


def long_timeout_group() -> Any:
    """Create a group for collectives that processes may reach days apart, such as at the end of their work.

    The death of a process still raises an error in the others at once. A collective call.
    """
    return _dist().new_group(backend="gloo", timeout=timedelta(days=_LONG_TIMEOUT_DAYS))


def gather_objects(world: World, value: T, group: Any = None) -> list[T]:
    """Gather a picklable value from every process; every process gets the list, by rank.

    `group` is the group of all processes, or their :func:`long_timeout_group`.
    """
    if world.size == 1:
        return [value]
    gathered: list[Any] = [None] * world.size
    _dist().all_gather_object(gathered, value, group=group)
    return gathered


@contextmanager
def raised_by_all(world: World, group: Any = None) -> Iterator[None]:
    """Raise a SeamsegError of a `with` block in all processes, of which one reports it; a collective call."""
    problem: SeamsegError | None = None
    try:
        yield
    except SeamsegError as error:
        problem = error
    found = gather_objects(world, problem, group)
    first = next((rank for rank, error in enumerate(found) if error is not None), None)
    if first == world.rank and problem is not None:
        raise problem
    if first is not None:
        other = CollectiveError(str(found[first]))
        other.exit_code, other.reported = found[first].exit_code, True  # type: ignore[union-attr]
        raise other


def max_over_processes(world: World, values: dict[str, float]) -> dict[str, float]:
    """Return the maximum of each number over the processes, which must all pass the same names."""
    return _reduced(world, values, "MAX")


def mean_over_processes(world: World, values: dict[str, float]) -> dict[str, float]:
    """Average each number over the processes, which must all pass the same names."""
    return {name: total / world.size for name, total in _reduced(world, values, "SUM").items()}


def _reduced(world: World, values: dict[str, float], operation: str) -> dict[str, float]:
    if world.size == 1 or not values:
        return values
    import torch

    numbers = torch.tensor(list(values.values()), dtype=torch.float64)
    _dist().all_reduce(numbers, op=getattr(_dist().ReduceOp, operation))
    return dict(zip(values, numbers.tolist()))


def sum_over_processes(world: World, values: torch.Tensor) -> torch.Tensor:
    """Sum a CPU tensor over the processes."""
    if world.size == 1:
        return values
    total = values.clone()
    _dist().all_reduce(total)
    return total


def broadcast_tensors(world: World, tensors: Iterable[torch.Tensor]) -> None:
    """Copy the values of tensors of the main process to all processes."""
    if world.size == 1:
        return
    for tensor in tensors:
        _dist().broadcast(tensor.detach(), src=0)
