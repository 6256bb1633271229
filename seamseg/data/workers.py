"""The processes that read images: their chance, and what one was reading when it died."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seamseg.utils.errors import SeamsegError

_DEATH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


@dataclass
class WorkerSeed:
    """A DataLoader's `worker_init_fn`: other random numbers in every worker of every rank in every epoch.

    The transforms here do not need it (:class:`seamseg.data.dataset.PanopticDataset` hands them their own source);
    those of others that use `random`, NumPy or torch do. Workers that live through several epochs are seeded once.

    Attributes
    ----------
    seed, rank, epoch : of the process that starts the workers
    reading : a number for each worker in shared memory, in which the data set notes the index it reads
    """

    seed: int = 0
    rank: int = 0
    epoch: int = 0
    reading: Tensor | None = None

    def __call__(self, worker: int) -> None:
        """Seed `random`, NumPy and torch in the worker process number `worker`."""
        state = random.Random(f"{self.seed}/{self.epoch}/{self.rank}/{worker}").getrandbits(63)
        random.seed(state)
        np.random.seed(state % 2**32)
        torch.manual_seed(state)
        info = get_worker_info()
        if info is not None:
            ignore_foreign_signals(worker)
        if self.reading is not None and info is not None and hasattr(info.dataset, "reading"):
            info.dataset.reading = self.reading[worker : worker + 1]


@contextmanager
def ignore_signals_in_children() -> Iterator[None]:
    """Block SIGTERM in processes started inside a `with` block, until they call :func:`ignore_foreign_signals`.

    This process blocks it, too, and receives pending signals at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_foreign_signals(worker: int = 0) -> None:
    """Ignore SIGTERM from other processes than the parent, as `worker_init_fn` of a DataLoader.

    Clusters signal whole process groups. The trainer decides when to stop, and needs its workers until then.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def dead_workers(error: BaseException, workers: Sequence[BaseProcess]) -> list[int]:
    """The numbers of the workers whose death an error of a DataLoader is about; none if it is about something else.

    Torch says so with a RuntimeError, anywhere in the main process; but a batch that the dead had yet to hand over can
    fail first, with an error of the connection.
    """
    match = _DEATH.search(str(error)) if isinstance(error, RuntimeError) else None
    if match is not None:
        pids = {int(pid) for pid in match.group(1).replace(",", " ").split()}
        return [number for number, worker in enumerate(workers) if worker.pid in pids]
    if not isinstance(error, (OSError, EOFError)):
        return []
    # those that the loader ends itself, on its way out, do not count
    orderly = (None, 0, -signal.SIGTERM)
    for worker in workers:
        worker.join(timeout=0.2)  # the connection may break before the end is known
    return [number for number, worker in enumerate(workers) if worker.exitcode not in orderly]


def worker_death(dead: Sequence[int], workers: Sequence[BaseProcess], files: Sequence[str | None]) -> SeamsegError:
    """The error that tells a user of the death of a worker.

    Parameters
    ----------
    dead : see :func:`dead_workers`
    workers : all of them
    files : what each of them reads, None where nothing
    """
    read = [file for number in dead if (file := files[number])]
    codes = {code for number in dead if (code := workers[number].exitcode)}
    reading = f" while it read {', '.join(read)}" if read else ""
    return SeamsegError(f"a process that loads images {death_of(codes)}{reading}; {_advice(codes)}")


def death_of(codes: set[int]) -> str:
    """How a process ended, in words, by its exit codes: `was killed by signal SIGKILL`."""
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
            "if it is the same file again, look at that file"
        )
    return "if it is the same file again, save it anew or take it off the list; continue with --resume"
