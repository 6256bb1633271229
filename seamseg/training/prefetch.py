"""Training batches on the device: their upload, and the transforms that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import torch

from seamseg.config.sections import Dataloader
from seamseg.data.loader import BatchLoader
from seamseg.data.transforms import finish_image
from seamseg.structures import Batch, Normalise, PackedSequence

TrainingBatch = Any
"""A batch as the trainer needs it, such as :class:`Batch`: with `ids`, `to(device, non_blocking)` and `tensors()`."""


class DeviceBatch(NamedTuple):
    """A batch on the device and its original on the host."""

    batch: TrainingBatch
    source: TrainingBatch


@dataclass(frozen=True)
class DevicePrefetcher:
    """Iterates over the batches of an epoch on the device, on a GPU uploading one ahead; `prepare` runs there."""

    loader: BatchLoader
    device: torch.device
    prepare: Callable[[TrainingBatch], TrainingBatch] | None = None

    def __iter__(self) -> Iterator[DeviceBatch]:
        for uploaded in prefetched(self.loader, self.device):
            yield uploaded if self.prepare is None else uploaded._replace(batch=self.prepare(uploaded.batch))


def prefetched(batches: Iterable[TrainingBatch], device: torch.device) -> Iterator[DeviceBatch]:
    """Upload batches in order; on CUDA on another stream, while the device works on the batch before."""
    if device.type != "cuda":
        for batch in batches:
            yield DeviceBatch(batch.to(device), batch)
        return
    stream = torch.cuda.Stream(device)
    upcoming: tuple[DeviceBatch, torch.cuda.Event] | None = None
    for batch in chain(batches, (None,)):
        uploaded = None
        if batch is not None:
            with torch.cuda.stream(stream):
                uploaded = DeviceBatch(batch.to(device, non_blocking=True), batch), stream.record_event()
        if upcoming is not None:
            ready, event = upcoming
            now = torch.cuda.current_stream(device)
            now.wait_event(event)
            for tensor in ready.batch.tensors():
                tensor.record_stream(now)  # allocated on the upload stream, which must not reuse the memory too early
            yield ready
        upcoming = uploaded


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
    # cached: otherwise the host would wait for the upload of the numbers in each step
    normalise = _normalise(options.rgb_mean, options.rgb_std, device)
    images, masks, boxes = [], [], []
    with torch.no_grad():
        for image, mask, box, deferred in zip(batch.images, batch.masks, batch.boxes, batch.deferred, strict=True):
            assert image is not None and mask is not None and box is not None
            images.append(finish_image(image, deferred, normalise))
            masks.append((mask.flip(-1) if deferred.flip else mask).long())
            if deferred.flip:
                y0, x0, y1, x1 = box.unbind(1)
                flipped = torch.stack((y0, mask.shape[-1] - x1, y1, mask.shape[-1] - x0), 1)
                # rows of -1 are of ids without pixels
                box = torch.where(box[:, :1] < 0, box, flipped)
            boxes.append(box)
    return replace(
        batch, images=PackedSequence(images), masks=PackedSequence(masks), boxes=PackedSequence(boxes), deferred=None
    )


_normalise = lru_cache(maxsize=8)(Normalise)
