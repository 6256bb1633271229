"""A DataLoader for :class:`PanopticDataset`: seeded workers, batches as `Batch`, errors of one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from seamseg.data.dataset import ClassUniform, PanopticDataset
from seamseg.data.sample_index import KeyedBatches
from seamseg.data.workers import WorkerSeed, dead_workers, ignore_signals_in_children, worker_death
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.errors import InputError, SeamsegError


class BatchLoader(DataLoader):
    """A DataLoader whose workers' errors arrive as they were raised, without a traceback in the message."""

    _workers: tuple[BaseProcess, ...] = ()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with explained_deaths(self):
            try:
                with ignore_signals_in_children():
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
    dataset : a :class:`PanopticDataset`, or another that takes :class:`seamseg.data.sample_index.ItemKey`
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


def collate(items: Sequence[dict[str, Any]]) -> Batch:
    """Gather items of :class:`seamseg.data.dataset.PanopticDataset`, as a DataLoader's `collate_fn`.

    Nothing is padded here: sizes may differ, and the network pads when it needs one tensor.
    """
    masks = [item["msk"] for item in items]
    if len({mask.dtype for mask in masks}) > 1:
        masks = [mask.int() for mask in masks]  # few ids are held in bytes
    return Batch(
        images=PackedSequence([item["img"] for item in items]),
        masks=PackedSequence(masks),
        categories=PackedSequence([item["cat"] for item in items]),
        iscrowd=PackedSequence([item["iscrowd"] for item in items]),
        boxes=PackedSequence([item["bbx"] for item in items]),
        ids=[item["id"] for item in items],
        original_sizes=[item["size"] for item in items],
        pending=[item["pending"] for item in items] if "pending" in items[0] else None,
        broken=[broken for item in items for broken in item.get("broken", ())],
    ).with_facts()


class BrokenSamples:
    """Counts the images of an epoch that others had to replace.

    Parameters
    ----------
    limit : part of the images of an epoch that may be broken
    images : of an epoch, in this process
    warn : is told of each file, once
    """

    def __init__(self, limit: float, images: int, warn: Callable[[str], None]) -> None:
        self.limit = limit
        self._warn = warn
        self._images = images
        self._known: set[str] = set()
        self._of_epoch: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Broken images of the epoch so far"""
        return len(self._of_epoch)

    def begin_epoch(self) -> None:
        """Count anew."""
        self._of_epoch = {}

    def add(self, broken: Iterable[tuple[str, str]]) -> None:
        """Take in what a batch says, `(id, what was wrong)` each (:attr:`seamseg.structures.Batch.broken`).

        Raises
        ------
        InputError
            if more images of the epoch are broken than the limit allows
        """
        self._of_epoch.update(broken)
        if self.count > self.limit * self._images:
            first = list(self._of_epoch.values())[:3]
            more = f"; and {self.count - len(first)} more" if self.count > len(first) else ""
            raise InputError(
                f"{self.count} of the {self._images} training images of this epoch cannot be read, which is more than "
                f"[dataloader] broken_limit = {self.limit:g} allows: {'; '.join(first)}{more}"
            )
        for image, reason in self._of_epoch.items():
            if image not in self._known:
                self._known.add(image)
                self._warn(f"{reason}; another image takes its place")
