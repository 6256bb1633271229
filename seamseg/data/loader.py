"""A DataLoader for :class:`PanopticDataset`: seeded workers, batches as `Batch`, errors of one line."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from seamseg.data.batches import collate
from seamseg.errors import SeamsegError


@dataclass
class WorkerSeed:
    """A DataLoader's `worker_init_fn`: other random numbers in every worker of every rank in every epoch.

    The transforms here do not need it (:class:`PanopticDataset` hands them their own source); those of others that use
    `random`, NumPy or torch do.
    """

    seed: int = 0
    rank: int = 0
    epoch: int = 0

    def __call__(self, worker: int) -> None:
        """Seed `random`, NumPy and torch in the worker process number `worker`."""
        state = random.Random(f"{self.seed}/{self.epoch}/{self.rank}/{worker}").getrandbits(63)
        random.seed(state)
        np.random.seed(state % 2**32)
        torch.manual_seed(state)
        if get_worker_info() is not None:
            _obey_the_parent_only()


def _obey_the_parent_only() -> None:
    """Let SIGTERM end this worker only when the process that reads from it sends it.

    Clusters signal whole groups of processes. The trainer says when to stop; it needs the batches until then.
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


class BatchLoader(DataLoader):
    """A DataLoader whose workers' errors arrive as they were raised, without a traceback in the message."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        try:
            yield from super().__iter__()
        except SeamsegError as error:
            raise type(error)(_own_message(error)) from None


def train_loader(
    dataset: Dataset,
    batch_sampler: Sampler[list[int]],
    num_workers: int = 0,
    pin_memory: bool = False,
    seed: int = 0,
    rank: int = 0,
) -> BatchLoader:
    """Batches of a data set in the order of a sampler.

    Call :func:`set_epoch` before each pass.
    """
    return BatchLoader(
        dataset,
        batch_sampler=batch_sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=collate,
        worker_init_fn=WorkerSeed(seed, rank),
        # each pass draws a number, which must not come out of the training's own chance: a resumed run passes once more
        generator=torch.Generator().manual_seed(seed),
    )


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Tell sampler, data set and workers of `loader` which epoch comes next, as far as they want to know."""
    for part in (loader.batch_sampler, loader.dataset):
        tell: Callable[[int], None] | None = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)
    if isinstance(loader.worker_init_fn, WorkerSeed):
        loader.worker_init_fn.epoch = epoch


def _own_message(error: SeamsegError) -> str:
    # torch re-raises a worker's error with its whole traceback as the message; the last line ends with ours
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    return str(error).rpartition(name)[2].strip()
