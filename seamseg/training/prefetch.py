"""The way of training batches from the files to the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader

from seamseg.config import Config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import BatchLoader, LoaderOptions, UnreadableImages, train_loader, translate_worker_errors
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import AugmentationOptions, TrainTransform
from seamseg.structures import Batch
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import available_cores


def open_loader(config: Config, data: str | Path, source: str | Path, world: World) -> BatchLoader:
    """The loader of the training batches of this process.

    Parameters
    ----------
    config : `[dataloader]`, seed
    data : dataset folder
    source : name of the configuration, for errors
    world : the processes, of which each gets its share

    Raises
    ------
    InputError
        if the split or the batch size is not given, or the data set is missing or broken
    """
    loading, seed = config.dataloader, config.general.seed
    if not loading.train_set:
        raise InputError(f"{source}: [dataloader] train_set is needed: the name of a list in {data}/lst")
    if not loading.train_batch_size:
        raise InputError(f"{source}: [dataloader] train_batch_size is needed: images a batch and process")
    transform = TrainTransform(
        loading.shortest_size,
        loading.longest_max_size,
        loading.rgb_mean,
        loading.rgb_std,
        AugmentationOptions(loading.random_flip, loading.random_scale, loading.crop_size, loading.color_jitter),
        loading.device_transforms,
    )
    dataset = PanopticDataset(
        data, loading.train_set, transform, seed, loading.fast_decode, replace_unreadable=loading.broken_limit > 0
    )
    sampler = DistributedARBatchSampler(
        dataset.img_sizes, loading.train_batch_size, world.size, world.rank, loading.drop_last, seed=seed
    )
    options = LoaderOptions(
        min(loading.num_workers, available_cores()),
        pin_memory=world.device.type == "cuda",
        seed=seed,
        rank=world.rank,
        persistent_workers=loading.persistent_workers,
        prefetch=loading.prefetch,
        class_uniform=loading.class_uniform,
    )
    return train_loader(dataset, sampler, options)


class Fed(NamedTuple):
    """A batch on the device, and as it came from the loader: what looks back at past steps holds no device memory."""

    batch: Batch
    source: Batch


class Feed:
    """The batches of an epoch on the device; one batch travels there while the one before it is trained on.

    Parameters
    ----------
    loader : of the batches
    device : where they go
    broken : counts the images that could not be read; None if none is replaced
    """

    def __init__(self, loader: DataLoader, device: torch.device, broken: UnreadableImages | None = None) -> None:
        self.loader = loader
        self.device = device
        self.broken = broken

    @staticmethod
    def open(config: Config, loader: DataLoader, world: World, warn: Callable[[str], None]) -> Feed:
        """For a training; `warn` is told of broken images in the main process, the others print."""
        if not world.is_main:
            warn = _to_stderr(world.rank)
        images = -(-len(loader.dataset) // world.size)  # type: ignore[arg-type]
        return Feed(loader, world.device, UnreadableImages(config.dataloader.broken_limit, images, warn))

    def __iter__(self) -> Iterator[Fed]:
        """One pass over the loader.

        Raises
        ------
        InputError
            if too many images are broken
        """
        if self.broken is not None:
            self.broken.begin_epoch()
        return prefetched(self._counted(), self.device)

    @property
    def broken_images(self) -> int:
        """Images of the epoch so far that could not be read"""
        return 0 if self.broken is None else self.broken.count

    def deaths_explained(self) -> AbstractContextManager[None]:
        """What trains on the batches belongs in it: see :func:`seamseg.data.loader.translate_worker_errors`."""
        return translate_worker_errors(self.loader)

    def _counted(self) -> Iterator[Batch]:
        for batch in self.loader:
            if self.broken is not None:
                self.broken.add(batch.unreadable)
            yield batch


def prefetched(batches: Iterable[Batch], device: torch.device) -> Iterator[Fed]:
    """The batches on the device, in order.

    On CUDA each is uploaded on a stream of its own while the device works on the one before; from pinned memory this
    costs the work nothing. Elsewhere batches are moved as they come.
    """
    if device.type != "cuda":
        for batch in batches:
            yield Fed(batch.to(device), batch)
        return
    stream = torch.cuda.Stream(device)
    coming: tuple[Fed, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            uploaded = Fed(batch.to(device, non_blocking=True), batch), stream.record_event()
        if coming is not None:
            yield _arrived(*coming)
        coming = uploaded
    if coming is not None:
        yield _arrived(*coming)


def _arrived(fed: Fed, event: torch.cuda.Event) -> Fed:
    stream = torch.cuda.current_stream(next(fed.batch.tensors()).device)
    stream.wait_event(event)
    for tensor in fed.batch.tensors():
        tensor.record_stream(stream)  # its memory belongs to the other stream, which must not reuse it too early
    return fed


def _to_stderr(rank: int) -> Callable[[str], None]:
    return lambda message: print(f"process {rank}: {message}", file=sys.stderr, flush=True)
