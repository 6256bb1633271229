"""Training batches on the device: their upload, and the transforms that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seamseg.config.sections import Dataloader
from seamseg.data.loader import BatchLoader
from seamseg.data.transforms import Normalise, finish_image, flip_boxes
from seamseg.structures import Batch, PackedSequence


class TrainingBatch(Protocol):
    """A training batch, as the trainer needs it, such as :class:`seamseg.structures.Batch`."""

    @property
    def ids(self) -> list[str]:
        """Names of the images."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> TrainingBatch:
        """Copy the tensors to a device."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors."""


class DeviceBatch(NamedTuple):
    """A batch on the device and its original on the host."""

    batch: TrainingBatch
    source: TrainingBatch


@dataclass(frozen=True)
class DevicePrefetcher:
    """Iterates over the batches of an epoch on the device, uploading one batch ahead.

    `prepare` has the transforms that run on the device; None for none.
    """

    loader: BatchLoader
    device: torch.device
    prepare: Callable[[TrainingBatch], TrainingBatch] | None = None

    def __iter__(self) -> Iterator[DeviceBatch]:
        for uploaded in prefetched(self.loader, self.device):
            yield uploaded if self.prepare is None else uploaded._replace(batch=self.prepare(uploaded.batch))


def prefetched(batches: Iterable[TrainingBatch], device: torch.device) -> Iterator[DeviceBatch]:
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


def prepare_batch(batch: Batch, options: Dataloader) -> Batch:
    """Apply the deferred transforms (`[dataloader] device_transforms`) of a batch on its device.

    These are colours, flip and normalisation of the images, and flip of masks and boxes. A batch without
    :attr:`Batch.deferred` is returned as it is, so that a second call has no effect. On the CPU the result is
    bit-identical to the transforms of the workers; on a GPU colour jitter may differ by rounding.
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
            masks.append((mask.flip(-1) if deferred.flip else mask).long())
            boxes.append(flip_boxes(box, mask.shape[-1]) if deferred.flip else box)
    return replace(
        batch, images=PackedSequence(images), masks=PackedSequence(masks), boxes=PackedSequence(boxes), deferred=None
    )


@lru_cache(maxsize=8)
def _normalise(
    rgb_mean: tuple[float, ...] | None, rgb_std: tuple[float, ...] | None, device: torch.device
) -> Normalise:
    # cached: otherwise the host would wait for the upload of the numbers in each step
    return Normalise(rgb_mean, rgb_std).to(device)
