"""The transform of training images with given options of `[dataloader]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seamseg.config import default_config
from seamseg.data.transforms import TrainTransform

PLAIN = replace(
    default_config().dataloader,
    **{"random_flip": False, "random_scale": None, "rgb_mean": None, "rgb_std": None, "device_transforms": False},
)


def train_transform(shortest: int, longest: int | None, **options: Any) -> TrainTransform:
    return TrainTransform(replace(PLAIN, shortest_size=shortest, longest_max_size=longest, **options))
