"""A DataLoader for :class:`PanopticDataset`: seeded workers, batches as `Batch`, one-line errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from seamseg.data.dataset import PanopticDataset
from seamseg.data.samplers import ClassUniformSampling, DistributedARBatchSampler, EpochBatchSampler, shard
from seamseg.data.workers import (
    WorkerSeed,
    begin_worker,
    failed_workers,
    recording_context,
    starting_workers,
    worker_failure,
)
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.parallel import available_cores


class BatchLoader(DataLoader[Any]):
    """A DataLoader that re-raises errors of its workers as they were raised, without a traceback in the message."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._workers: list[BaseProcess] = []

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with translate_worker_errors(self):
            try:
                if self.num_workers and self.multiprocessing_context is None:
                    self.multiprocessing_context = recording_context(self._workers)
                if not self.persistent_workers:
                    self._workers.clear()
                with starting_workers("dataloader.num_workers"):
                    iterator = super().__iter__()
                yield from iterator
            except SeamsegError as error:
                raise type(error)(_own_message(error)) from None

    def _files(self) -> list[str | None]:
        """Return the file that each worker reads now, or was reading when it died."""
        reading, file_name = getattr(self.worker_init_fn, "reading", None), getattr(self.dataset, "file_name", None)
        if reading is None or file_name is None:
            return [None] * len(self._workers)
        return [file_name(i) if i >= 0 else None for i in reading.tolist()]


@contextmanager
def translate_worker_errors(loader: DataLoader[Any]) -> Iterator[None]:
    """Translate the error about a dead worker to a SeamsegError that names the file it was reading.

    A DataLoader raises it from a signal handler, that is at any place of the main process: wrap the code that trains on
    the batches, too.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        workers = loader._workers if isinstance(loader, BatchLoader) else []
        failed = failed_workers(error, workers)
        if not failed:
            raise
        assert isinstance(loader, BatchLoader)
        raise worker_failure(failed, workers, loader._files()) from error


@dataclass(frozen=True)
class LoaderOptions:
    """Options of :func:`train_loader`.

    With `num_workers=0` the main process reads the images. `prefetch` is the number of batches that each worker
    prepares ahead, `class_uniform` the fraction of the draws that :class:`ClassUniformSampling` replaces.
    """

    num_workers: int = 0
    pin_memory: bool = False
    seed: int = 0
    rank: int = 0
    persistent_workers: bool = False
    prefetch: int = 2
    class_uniform: float = 0

    @staticmethod
    def of(keys: Any, seed: int, world: World, class_uniform: float = 0) -> LoaderOptions:
        """Return the options of a process for a configuration: its `num_workers`, `persistent_workers`, `prefetch`."""
        workers, pinned = min(keys.num_workers, available_cores()), world.device.type == "cuda"
        return LoaderOptions(workers, pinned, seed, world.rank, keys.persistent_workers, keys.prefetch, class_uniform)


def train_loader(
    dataset: Dataset[Any],
    batch_sampler: DistributedARBatchSampler,
    options: LoaderOptions = LoaderOptions(),
    collate_fn: Callable[[Sequence[Any]], Any] | None = None,
) -> BatchLoader:
    """Return a loader of batches in the order of a sampler; call :func:`set_epoch` before each pass.

    The batches do not depend on `num_workers`, `persistent_workers` and `prefetch`, and torch's global RNG is not used.
    The data set accepts :class:`seamseg.data.samplers.SampleIndex`. `collate_fn` defaults to :func:`collate`.
    """
    replace = None
    if options.class_uniform:
        assert isinstance(dataset, PanopticDataset)
        replace = ClassUniformSampling(dataset.images, options.class_uniform, options.seed)
    reading = None
    if options.num_workers:
        with starting_workers("dataloader.num_workers"):
            reading = torch.full((options.num_workers,), -1, dtype=torch.int64).share_memory_()
    return BatchLoader(
        dataset,
        batch_sampler=EpochBatchSampler(batch_sampler, replace),
        num_workers=options.num_workers,
        pin_memory=options.pin_memory,
        collate_fn=collate_fn or collate,
        worker_init_fn=WorkerSeed(options.seed, options.rank, reading=reading),
        persistent_workers=options.persistent_workers and options.num_workers > 0,
        prefetch_factor=options.prefetch if options.num_workers else None,
        # otherwise each pass draws from the global RNG, and a resumed run differs from an uninterrupted one
        generator=torch.Generator().manual_seed(options.seed),
    )


def shard_loader(dataset: Dataset[Any], num_workers: int, world: World, **options: Any) -> BatchLoader:
    """Return the loader of the samples that this process alone reads, in order; `options` are those of a DataLoader."""
    sampler = shard(len(dataset), world.size, world.rank)  # type: ignore[arg-type]
    workers = min(num_workers, available_cores(), len(sampler))
    return BatchLoader(dataset, sampler=sampler, num_workers=workers, worker_init_fn=begin_worker, **options)


def index_sampler(loader: BatchLoader) -> DistributedARBatchSampler:
    """Return the sampler of a :func:`train_loader` of a training: it decides the order, and where an epoch starts."""
    assert isinstance(loader.batch_sampler, EpochBatchSampler)
    return loader.batch_sampler.sampler


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Set the next epoch of the sampler and the workers of a :func:`train_loader`."""
    assert isinstance(loader.batch_sampler, EpochBatchSampler) and isinstance(loader.worker_init_fn, WorkerSeed)
    loader.batch_sampler.set_epoch(epoch)
    loader.worker_init_fn.epoch = epoch


def _own_message(error: SeamsegError) -> str:
    # torch re-raises a worker's error with its whole traceback as the message; the last line ends with ours
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    return str(error).rpartition(name)[2].strip()


def collate(items: Sequence[dict[str, Any]]) -> Batch:
    """Collate items of :class:`seamseg.data.dataset.PanopticDataset`, as a DataLoader's `collate_fn`.

    Nothing is padded here: sizes may differ, and the network pads when it needs one tensor.
    """
    masks = [item["msk"] for item in items]
    if len({mask.dtype for mask in masks}) > 1:
        masks = [mask.int() for mask in masks]  # images with few ids have uint8 masks
    return Batch(
        images=PackedSequence([item["img"] for item in items]),
        masks=PackedSequence(masks),
        categories=PackedSequence([item["cat"] for item in items]),
        iscrowd=PackedSequence([item["iscrowd"] for item in items]),
        boxes=PackedSequence([item["bbx"] for item in items]),
        ids=[item["id"] for item in items],
        original_sizes=[item["size"] for item in items],
        deferred=[item["deferred"] for item in items] if "deferred" in items[0] else None,
        unreadable=[entry for item in items for entry in item.get("unreadable", ())],
        maps={name: PackedSequence([item["maps"][name] for item in items]) for name in items[0].get("maps", ())},
    ).with_target_info()


class UnreadableImages:
    """Counts the images of an epoch that could not be read and were replaced by others.

    `limit` is the fraction of the `images` of this process in an epoch that may be unreadable. `warn` is called once
    for each file.
    """

    def __init__(self, limit: float, images: int, warn: Callable[[str], None]) -> None:
        self.limit = limit
        self._warn = warn
        self._images = images
        self._reported: set[str] = set()
        self._of_epoch: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Unreadable images of the epoch so far."""
        return len(self._of_epoch)

    def begin_epoch(self) -> None:
        """Reset the count."""
        self._of_epoch = {}

    def add(self, unreadable: Iterable[tuple[str, str]]) -> None:
        """Count the unreadable images of a batch, `(id, error)` each; InputError beyond the limit."""
        self._of_epoch.update(unreadable)
        if self.count > self.limit * self._images:
            first = list(self._of_epoch.values())[:3]
            more = f"; and {self.count - len(first)} more" if self.count > len(first) else ""
            raise InputError(
                f"{self.count} of the {self._images} training images of this epoch cannot be read, which is more than "
                f"[dataloader] broken_limit = {self.limit:g} allows: {'; '.join(first)}{more}"
            )
        for image, reason in self._of_epoch.items():
            if image not in self._reported:
                self._reported.add(image)
                self._warn(f"{reason}; replaced by another image")
