"""Worker processes of data loading: their seeds, and the errors that report their failure."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, queues
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seamseg.data.reader import Reader
from seamseg.utils.errors import SeamsegError, one_line
from seamseg.utils.output import echo
from seamseg.utils.signals import begin_worker_process, block_stop_signals

_DEAD_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


@dataclass
class WorkerSeed:
    """A DataLoader's `worker_init_fn`: different random numbers in every worker of every rank in every epoch.

    The transforms of this package do not need it (:class:`seamseg.data.dataset.PanopticDataset` passes them an RNG of
    their own); other transforms that use `random`, NumPy or torch do. Persistent workers are seeded once. `reading` has
    one number per worker in shared memory, where the data set records the index it reads.
    """

    seed: int = 0
    rank: int = 0
    epoch: int = 0
    reading: Tensor | None = None

    def __call__(self, worker: int) -> None:
        """Seed `random`, NumPy and torch in the worker process number `worker`."""
        seed_generators(f"{self.seed}/{self.epoch}/{self.rank}/{worker}")
        info = get_worker_info()
        if info is not None:
            begin_worker(worker)
        if self.reading is not None and info is not None and hasattr(info.dataset, "reading"):
            info.dataset.reading = self.reading[worker : worker + 1]


def seed_generators(text: str) -> None:
    """Seed the RNGs of Python, NumPy and torch by a text."""
    value = random.Random(text).getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def begin_worker(worker: int = 0) -> None:
    """Prepare a worker process, to ignore signals and to end if it cannot send; a DataLoader's `worker_init_fn`."""
    begin_worker_process()
    reader = getattr(getattr(get_worker_info(), "dataset", None), "reader", None)
    if isinstance(reader, Reader):
        reader.begin_worker()
    queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _end_worker(error: Exception, batch: object) -> None:
    """End a worker whose batch is lost, mostly because shared memory is full, for which the main process would wait."""
    if isinstance(error, ConnectionError):
        # the main process has ended, or reads no more
        os._exit(1)
    echo(f"a data loading worker cannot send: {one_line(error)[:300]}", file=sys.stderr, flush=True)
    # as a write to full shared memory does; Windows lacks SIGBUS
    os.kill(os.getpid(), getattr(signal, "SIGBUS", signal.SIGTERM))


@contextmanager
def starting_workers(parameter: str) -> Iterator[None]:
    """Start worker processes, or share tensors with them, in a `with` block that no signal interrupts.

    SeamsegError, which names the parameter of their number, if they cannot be started.
    """
    try:
        with block_stop_signals():
            yield
    except (OSError, RuntimeError) as error:
        # torch raises RuntimeError for shared memory, and for a worker that has died meanwhile
        if isinstance(error, ConnectionError) or _DEAD_WORKER.search(str(error)):
            raise
        raise SeamsegError(
            f"cannot start worker processes: {str(error)[:200]}; enlarge /dev/shm (docker run --shm-size) or what the "
            f"error names, or use `{parameter}=0`"
        ) from error


def recording_context(started: list[BaseProcess]) -> BaseContext:
    """Return a context of multiprocessing that appends each process it makes to a list; it forks on Linux.

    Workers of a fork server have another parent, so that they would outlive this process. A worker can die while its
    DataLoader starts the others, which raises before the loader is known.
    """
    base = get_context("fork" if sys.platform == "linux" else None)

    class Recording(type(base)):  # type: ignore[misc]
        def Process(self, *args: Any, **options: Any) -> BaseProcess:  # the interface of a context
            process: BaseProcess = base.Process(*args, **options)
            started.append(process)
            return process

    context: BaseContext = Recording()
    return context


def failed_workers(error: BaseException, workers: Sequence[BaseProcess]) -> list[int]:
    """Return the numbers of the workers whose death caused an error of a DataLoader; empty for any other error.

    Torch raises a RuntimeError, at any place of the main process; but receiving a batch of the dead worker can fail
    first, with an error of the connection.
    """
    match = _DEAD_WORKER.search(str(error)) if isinstance(error, RuntimeError) else None
    if match is not None:
        pids = {int(pid) for pid in match.group(1).replace(",", " ").split()}
        return [number for number, worker in enumerate(workers) if worker.pid in pids]
    if not isinstance(error, (OSError, EOFError)):
        return []
    # those that the loader terminates itself during shutdown do not count
    orderly = (None, 0, -signal.SIGTERM)
    # the connection breaks before the process has ended, on a busy machine by seconds, and that before its exit code
    patience = 5 if isinstance(error, (ConnectionError, EOFError)) else 0.2
    alive = {worker.sentinel: worker for worker in workers if worker.is_alive()}
    if alive and all(worker.exitcode in orderly for worker in workers):
        for sentinel in connection.wait(list(alive), patience):
            alive[sentinel].join(timeout=5)  # type: ignore[index]
    return [number for number, worker in enumerate(workers) if worker.exitcode not in orderly]


def worker_failure(failed: Sequence[int], workers: Sequence[BaseProcess], files: Sequence[str | None]) -> SeamsegError:
    """Return the error for the death of the `failed` ones of all workers, each of which reads a file, or None."""
    read = [file for number in failed if (file := files[number])]
    codes = {code for number in failed if (code := workers[number].exitcode)}
    reading = f" while reading {', '.join(read)}" if read else ""
    return SeamsegError(f"a data loading worker {describe_exit(codes)}{reading}; {_advice(codes)}")


def describe_exit(codes: set[int]) -> str:
    """Describe how a process ended by its exit codes, for example `was killed by signal SIGKILL`."""
    if not codes:
        return "died"
    code = min(codes)
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _advice(codes: set[int]) -> str:
    if -signal.SIGBUS in codes:
        return "shared memory is full: enlarge /dev/shm (docker run --shm-size), or lower dataloader.num_workers"
    if -signal.SIGKILL in codes:
        return (
            "usually the machine ran out of memory: lower dataloader.num_workers or dataloader.prefetch; "
            "if it happens at the same file again, check that file"
        )
    again = "if it happens at the same file again, replace the file or remove it from the list"
    return f"{again}; continue with `resume=auto`"
