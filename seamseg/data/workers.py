"""The processes that read images: their chance, and what one was reading when it died."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from seamseg.errors import SeamsegError

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
        if self.reading is not None and info is not None and hasattr(info.dataset, "reading"):
            info.dataset.reading = self.reading[worker : worker + 1]


def is_worker_death(error: BaseException) -> bool:
    """True for what a DataLoader raises, anywhere in the main process, when one of its workers has died."""
    return isinstance(error, RuntimeError) and _DEATH.search(str(error)) is not None


def worker_death(error: BaseException, workers: Sequence[BaseProcess], files: Sequence[str | None]) -> SeamsegError:
    """The error that tells a user of the death of a worker.

    Parameters
    ----------
    error : of the DataLoader, see :func:`is_worker_death`
    workers : all of them
    files : what each of them reads, None where nothing
    """
    match = _DEATH.search(str(error))
    pids = {int(pid) for pid in match.group(1).replace(",", " ").split()} if match else set()
    dead = [number for number, worker in enumerate(workers) if worker.pid in pids]
    read = [file for number in dead if (file := files[number])]
    codes = {code for number in dead if (code := workers[number].exitcode)}
    reading = f" while it read {', '.join(read)}" if read else ""
    return SeamsegError(f"a process that loads images {_how(codes)}{reading}; {_advice(codes)}")


def _how(codes: set[int]) -> str:
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
