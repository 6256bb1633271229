"""A split of a dataset folder as a PyTorch data set of transformed images with their targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo, Metadata
from seamseg.errors import InputError


class Transform(Protocol):
    """What :class:`PanopticDataset` calls, see :class:`seamseg.data.transforms.TrainTransform`."""

    def __call__(
        self, image: Image.Image, mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], rng: Random | None
    ) -> dict[str, Any]: ...


class PanopticDataset(Dataset):
    """Images of one split.

    The chance of an item (flip, scale) depends on `seed`, the epoch and the item's index alone: not on the number of
    workers, the order of loading or an interruption.

    Parameters
    ----------
    root : dataset folder
    split : name of a list in `lst/`
    transform : makes tensors, :class:`seamseg.data.transforms.TrainTransform`
    seed : of the random transforms

    Attributes
    ----------
    folder : the opened :class:`DatasetFolder`
    images : :class:`ImageInfo` by index
    img_sizes : `(height, width)` by index, for the samplers

    Raises
    ------
    InputError
        if the folder, its metadata or the split is missing, broken or empty
    """

    def __init__(self, root: str | Path, split: str, transform: Transform, seed: int = 0) -> None:
        self.folder = DatasetFolder(root)
        self.split = split
        self.images: list[ImageInfo] = self.folder.split(split)
        self.transform = transform
        self.seed = seed
        self.epoch = 0

    @property
    def metadata(self) -> Metadata:
        """Classes and images of the whole folder"""
        return self.folder.metadata

    @property
    def num_stuff(self) -> int:
        """Number of stuff classes"""
        return self.metadata.num_stuff

    @property
    def num_thing(self) -> int:
        """Number of thing classes"""
        return self.metadata.num_thing

    @property
    def categories(self) -> list[str]:
        """Class names, stuff first"""
        return self.metadata.categories

    @property
    def img_sizes(self) -> list[tuple[int, int]]:
        """`(height, width)` by index"""
        return [image.size for image in self.images]

    def set_epoch(self, epoch: int) -> None:
        """Draw other flips and scales than in other epochs. Call it before iterating a loader over this data set."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> tuple[Image.Image, np.ndarray, ImageInfo]:
        """Photo and mask (`L x H x W` int32) of an item before any transform.

        Raises
        ------
        InputError
            naming the file, if one is missing or broken or if they do not fit each other
        """
        info = self.images[index]
        path = self.folder.image_path(info.id)
        image = self.folder.read_image(path)
        if image.size != info.size[::-1]:
            turned = " (it lies rotated by its EXIF orientation)" if image.size == info.size else ""
            raise InputError(
                f"{path}: the image is {image.width} x {image.height} pixels (width x height), its mask and "
                f"metadata.bin say {info.size[1]} x {info.size[0]}{turned}; "
                "put the photo back that the mask was drawn on, or prepare the data set again"
            )
        return image, self.folder.read_mask(info.id), info

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The dict that the transform makes, with `id` and `size`, the original `(height, width)`, added."""
        image, mask, info = self.read(index)
        rng = Random(f"{self.seed}/{self.epoch}/{index}")
        item = self.transform(image, mask, info.cat, info.iscrowd, rng)
        return {**item, "id": info.id, "size": info.size}
