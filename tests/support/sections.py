"""Sections of a configuration, and transforms, for modules made without one: the defaults with some keys changed."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seamseg.config.loader import default_config
from seamseg.config.sections import Roi, Rpn, Sem
from seamseg.data.transforms import TrainTransform
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.structures import Things

PLAIN = replace(
    default_config().dataloader,
    **{"random_flip": False, "random_scale": None, "rgb_mean": None, "rgb_std": None, "device_transforms": False},
)


def rpn(**changes: Any) -> Rpn:
    return replace(default_config().rpn, **changes)


def roi(**changes: Any) -> Roi:
    return replace(default_config().roi, **changes)


def sem(kind: str = "panoptic", **changes: Any) -> Sem:
    return replace(default_config(kind).sem, **changes)


def things(boxes: Tensor | None, crowd: Tensor | None = None) -> Things:
    """Things of one class with these boxes, None for no things."""
    rows = torch.zeros(0, 4) if boxes is None else boxes
    ids = torch.arange(len(rows))
    return Things(rows, torch.zeros_like(ids), ids, crowd)


def train_transform(shortest: int, longest: int | None, **options: Any) -> TrainTransform:
    return TrainTransform(replace(PLAIN, shortest_size=shortest, longest_max_size=longest, **options))


def sample(transform: TrainTransform, image: Any, mask: Any, cat: Any, crowd: Any, rng: Any) -> dict[str, Any]:
    """Return the tensors of an image with an augmentation that is drawn from the random numbers."""
    params = transform.sample_params(mask.shape[-2:], rng)
    return transform(image, mask, ImageInfo("", list(cat), mask.shape[-2:], list(crowd)), params)
