"""Training batches: loading, upload to the device, and the transforms that run there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from seamseg.config import Config
from seamseg.config.sections import Dataloader
from seamseg.data.dataset import PanopticDataset
from seamseg.data.instances import InstanceOptions
from seamseg.data.loader import BatchLoader, LoaderOptions, UnreadableImages, train_loader, translate_worker_errors
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import AugmentationOptions, Normalise, TrainTransform, finish_image, flip_boxes
from seamseg.structures import Batch, DeferredTransform, PackedSequence
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import available_cores


def open_loader(config: Config, data: str | Path, source: str | Path, world: World) -> BatchLoader:
    """Open the loader of the training batches of this process.

    Parameters
    ----------
    config : `[dataloader]`, seed
    data : dataset folder
    source : name of the configuration, for errors
    world : the processes, among which the images are divided

    Raises
    ------
    InputError
        if the split or the batch size is not given, or the data set is missing or broken
    """
    loading, seed = config.dataloader, config.general.seed
    if not loading.train_set:
        raise InputError(f"{source}: [dataloader] train_set is required: the name of a list in {data}/lst")
    if not loading.train_batch_size:
        raise InputError(f"{source}: [dataloader] train_batch_size is required: images per batch and process")
    transform = TrainTransform(
        loading.shortest_size,
        loading.longest_max_size,
        loading.rgb_mean,
        loading.rgb_std,
        AugmentationOptions(loading.random_flip, loading.random_scale, loading.crop_size, loading.color_jitter),
        loading.device_transforms,
    )
    dataset = PanopticDataset(
        data,
        loading.train_set,
        transform,
        seed,
        loading.fast_decode,
        replace_unreadable=loading.broken_limit > 0,
        instances=InstanceOptions(loading.instance_scale_uniform, loading.copy_paste),
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


class DeviceBatch(NamedTuple):
    """A batch on the device and its original on the host; a reference to past originals holds no device memory."""

    batch: Batch
    source: Batch


class DevicePrefetcher:
    """Iterates over the batches of an epoch on the device, uploading one batch ahead.

    Parameters
    ----------
    loader : of the batches
    device : to upload to
    broken : counts the unreadable images; None if they are not replaced
    """

    def __init__(self, loader: DataLoader, device: torch.device, broken: UnreadableImages | None = None) -> None:
        self.loader = loader
        self.device = device
        self.broken = broken

    @staticmethod
    def open(config: Config, loader: DataLoader, world: World, warn: Callable[[str], None]) -> DevicePrefetcher:
        """Open for a training; the main process passes warnings of broken images to `warn`, the others print them."""
        if not world.is_main:
            warn = _to_stderr(world.rank)
        images = -(-len(loader.dataset) // world.size)  # type: ignore[arg-type]
        return DevicePrefetcher(loader, world.device, UnreadableImages(config.dataloader.broken_limit, images, warn))

    def __iter__(self) -> Iterator[DeviceBatch]:
        """Iterate over one pass of the loader.

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
        """Number of images of the epoch so far that could not be read."""
        return 0 if self.broken is None else self.broken.count

    def worker_errors(self) -> AbstractContextManager[None]:
        """Translate errors of workers in a `with` block, see :func:`seamseg.data.loader.translate_worker_errors`."""
        return translate_worker_errors(self.loader)

    def _counted(self) -> Iterator[Batch]:
        for batch in self.loader:
            if self.broken is not None:
                self.broken.add(batch.unreadable)
            yield batch


def prefetched(batches: Iterable[Batch], device: torch.device) -> Iterator[DeviceBatch]:
    """Upload batches and yield them in order.

    On CUDA, each is uploaded on a separate stream while the device works on the previous one; from pinned memory this
    overlaps completely. Elsewhere batches are moved one by one.
    """
    if device.type != "cuda":
        for batch in batches:
            yield DeviceBatch(batch.to(device), batch)
        return
    stream = torch.cuda.Stream(device)
    upcoming: tuple[DeviceBatch, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            uploaded = DeviceBatch(batch.to(device, non_blocking=True), batch), stream.record_event()
        if upcoming is not None:
            yield _awaited(*upcoming)
        upcoming = uploaded
    if upcoming is not None:
        yield _awaited(*upcoming)


def _awaited(uploaded: DeviceBatch, event: torch.cuda.Event) -> DeviceBatch:
    stream = torch.cuda.current_stream(next(uploaded.batch.tensors()).device)
    stream.wait_event(event)
    for tensor in uploaded.batch.tensors():
        tensor.record_stream(stream)  # allocated on the upload stream, which must not reuse the memory too early
    return uploaded


def _to_stderr(rank: int) -> Callable[[str], None]:
    return lambda message: print(f"process {rank}: {message}", file=sys.stderr, flush=True)


def prepare_batch(batch: Batch, options: Dataloader) -> Batch:
    """Apply the deferred transforms (`[dataloader] device_transforms`) of a batch on its device.

    These are colours, flip and normalisation of the images, and flip of masks and boxes. A batch without
    :attr:`Batch.deferred` is returned as it is, so that a second call has no effect. On the CPU the result is
    bit-identical to that of the workers; on a GPU colour jitter may differ by rounding.

    Parameters
    ----------
    batch : on the device
    options : normalisation
    """
    if batch.deferred is None:
        return batch
    device = batch.images.device
    assert device is not None
    normalise = _normalise(options.rgb_mean, options.rgb_std, device)
    images, masks, boxes = [], [], []
    with torch.no_grad():
        for image, mask, box, deferred in zip(batch.images, batch.masks, batch.boxes, batch.deferred, strict=True):
            assert image is not None and mask is not None and box is not None
            images.append(finish_image(image, deferred, normalise))
            masks.append(_finish_mask(mask, deferred))
            boxes.append(flip_boxes(box, mask.shape[-1]) if deferred.flip else box)
    return replace(
        batch,
        images=PackedSequence(images),
        masks=PackedSequence(masks),
        boxes=PackedSequence(boxes),
        deferred=None,
    )


@lru_cache(maxsize=8)
def _normalise(
    rgb_mean: tuple[float, ...] | None, rgb_std: tuple[float, ...] | None, device: torch.device
) -> Normalise:
    # cached: otherwise the host would wait for the upload of the numbers in each step
    return Normalise(rgb_mean, rgb_std).to(device)


def _finish_mask(mask: Tensor, deferred: DeferredTransform) -> Tensor:
    return mask.flip(-1).long() if deferred.flip else mask.long()
