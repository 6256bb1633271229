"""The part of the training transforms that runs on the device (`[dataloader] device_transforms`)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from seamseg.config.sections import Dataloader
from seamseg.data.pixels import Normalise, finish_image, flip_boxes
from seamseg.structures import Batch, DeferredTransform, PackedSequence


def prepare_batch(batch: Batch, options: Dataloader) -> Batch:
    """Do what the workers left to do: colours, flip, normalisation of the images; flip of masks and boxes.

    A batch without :attr:`Batch.deferred` is returned as it is, so that a second call does nothing. On the CPU the
    result equals that of the workers to the last bit; on a GPU colour jitter may differ by rounding.

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
            masks.append(_mask(mask, deferred))
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
    # kept: the host would wait for the way of its numbers to the device in each step
    return Normalise(rgb_mean, rgb_std).to(device)


def _mask(mask: Tensor, deferred: DeferredTransform) -> Tensor:
    return mask.flip(-1).long() if deferred.flip else mask.long()
