"""A DataLoader for :class:`PanopticDataset`: seeded workers, batches as `Batch`, errors of one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from seamseg.data.batches import collate
from seamseg.data.class_uniform import ClassUniform
from seamseg.data.dataset import PanopticDataset
from seamseg.data.keys import KeyedBatches
from seamseg.data.workers import WorkerSeed, dead_workers, deaf_children, worker_death
from seamseg.errors import SeamsegError


class BatchLoader(DataLoader):
    """A DataLoader whose workers' errors arrive as they were raised, without a traceback in the message."""

    _workers: tuple[BaseProcess, ...] = ()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with explained_deaths(self):
            try:
                with deaf_children():
                    iterator = super().__iter__()
                self._workers = tuple(getattr(iterator, "_workers", ()))
                yield from iterator
            except SeamsegError as error:
                raise type(error)(_own_message(error)) from None

    def _files(self) -> list[str | None]:
        """What each worker reads at the moment, or read when it died."""
        reading = getattr(self.worker_init_fn, "reading", None)
        if reading is None or not isinstance(self.dataset, PanopticDataset):
            return [None] * len(self._workers)
        return [self.dataset.file_name(i) if i >= 0 else None for i in reading.tolist()]


@contextmanager
def explained_deaths(loader: DataLoader) -> Iterator[None]:
    """Make a SeamsegError that names the file of the error about a worker that died.

    A DataLoader raises it from a signal handler, that is at any place of the main process: wrap what trains on the
    batches, too.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        workers = loader._workers if isinstance(loader, BatchLoader) else ()
        dead = dead_workers(error, workers)
        if not dead:
            raise
        assert isinstance(loader, BatchLoader)
        raise worker_death(dead, workers, loader._files()) from error


def train_loader(
    dataset: Dataset,
    batch_sampler: Sampler[list[int]],
    num_workers: int = 0,
    pin_memory: bool = False,
    seed: int = 0,
    rank: int = 0,
    persistent_workers: bool = False,
    prefetch: int = 2,
    class_uniform: float = 0,
) -> BatchLoader:
    """Batches of a data set in the order of a sampler; call :func:`set_epoch` before each pass.

    The same items come in the same batches whatever `num_workers`, `persistent_workers` and `prefetch` say, and
    torch's global chance is not drawn from.

    Parameters
    ----------
    dataset : a :class:`PanopticDataset`, or another that takes :class:`seamseg.data.keys.ItemKey`
    batch_sampler : gives lists of indices; becomes `batch_sampler.sampler` of the loader
    num_workers : processes that read images; 0 reads in this one
    pin_memory : put the batches into page-locked memory
    seed, rank : of the workers' chance and of `class_uniform`
    persistent_workers : they live on from epoch to epoch
    prefetch : batches that each of them prepares ahead
    class_uniform : part of the draws that :class:`ClassUniform` replaces

    Raises
    ------
    InputError
        if `class_uniform` is not 0 to 1
    """
    replace = None
    if class_uniform:
        assert isinstance(dataset, PanopticDataset)
        replace = ClassUniform(dataset.images, class_uniform, seed)
    reading = torch.full((num_workers,), -1, dtype=torch.int64).share_memory_() if num_workers else None
    return BatchLoader(
        dataset,
        batch_sampler=KeyedBatches(batch_sampler, replace),  # type: ignore[arg-type]
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=collate,
        worker_init_fn=WorkerSeed(seed, rank, reading=reading),
        persistent_workers=persistent_workers and num_workers > 0,
        prefetch_factor=prefetch if num_workers else None,
        # otherwise each pass draws from the global source, and a resumed run goes other ways than a straight one
        generator=torch.Generator().manual_seed(seed),
    )


def index_sampler(loader: DataLoader) -> Any:
    """The sampler of indices that was given to :func:`train_loader`, which decides the order and where to begin."""
    return loader.batch_sampler.sampler if isinstance(loader.batch_sampler, KeyedBatches) else loader.batch_sampler


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
