"""The images of a split as a validation reads them, or why one cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from seamseg.data.dataset import PanopticDataset
from seamseg.data.input_size import InputSize
from seamseg.inference.images import network_input
from seamseg.inference.results.base import ImageResult
from seamseg.maps.folder import ReadMap
from seamseg.utils.errors import SeamsegError, item_error


@dataclass(frozen=True)
class ValidationItem:
    """An image of a split: network input `H x W x 3` uint8, instance ids `L x h x w` at native size, their classes.

    `maps` has the ground truth of `Metric.reads`, `channels x h x w` float32. `result` is for metrics, see
    :class:`ValidationResult`; otherwise None.
    """

    id: str
    pixels: np.ndarray
    mask: Tensor
    cat: Sequence[int]
    iscrowd: Sequence[int]
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)
    result: ImageResult | None = None

    @property
    def native_size(self) -> tuple[int, int]:
        """Native size `(h, w)` of the image."""
        return int(self.mask.shape[-2]), int(self.mask.shape[-1])


@dataclass(frozen=True)
class ValidationTransform:
    """Transforms the image as in prediction and leaves the ground truth unchanged."""

    size: InputSize
    maps: Mapping[str, ReadMap]

    def __call__(
        self, image: Image.Image, mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], rng: Random | None
    ) -> dict[str, Any]:
        """See :class:`seamseg.data.dataset.Transform`."""
        # a tensor, which the processes of a loader share
        pixels = torch.from_numpy(network_input(image, self.size))
        return {"img": pixels, "msk": torch.from_numpy(mask), "cat": cat, "iscrowd": iscrowd}


class ItemsOrErrors(Dataset[Any]):
    """The items of a split; the error, for an image that cannot be read."""

    def __init__(self, dataset: PanopticDataset) -> None:
        self.dataset = dataset
        self.reader = dataset.reader

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> ValidationItem | SeamsegError:
        try:
            return item_of(self.dataset[index])
        except Exception as error:
            return item_error(error, f"{self.dataset.file_name(index)}: cannot be read")


def unchanged(item: Any) -> Any:
    """Return an item as it is; the default `collate_fn` would rebuild it."""
    return item


def item_of(data: Any) -> ValidationItem:
    """Return the item of what a :class:`ValidationTransform` has made."""
    maps = {name: values.numpy() for name, values in data.get("maps", {}).items()}
    return ValidationItem(data["id"], data["img"].numpy(), data["msk"], data["cat"], data["iscrowd"], maps)
