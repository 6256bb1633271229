"""Images in class folders (`DATA/train/<class>/*`, `DATA/val/<class>/*`), their transforms, and batches of them.

Training images get a random resized crop, a flip, and optionally the colour changes of the original: saturation,
brightness and contrast in random order (:func:`color_jitter`), and a shift along the principal components of the
colours of ImageNet (:func:`lighting`; Krizhevsky et al. 2012). Random numbers come from `random` and torch's global
generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from seamseg.contrib.classification.config import ClassifierConfig, InputConfig
from seamseg.data.input_size import InputSize
from seamseg.data.samplers import SampleIndex
from seamseg.inference.images import network_input
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.images import image_files, open_image
from seamseg.utils.errors import InputError, first_names
from seamseg.utils.files import is_hidden

TRAIN, VAL = "train", "val"


class ImageBatch(NamedTuple):
    """Images `N x 3 x H x W` float32, normalised, or `N x crops x 3 x H x W`; classes `N` int64; file names."""

    images: Tensor
    labels: Tensor
    ids: list[str]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ImageBatch:
        """Copy the tensors to a device."""
        images, labels = (t.to(device, non_blocking=non_blocking) for t in self.tensors())
        return self._replace(images=images, labels=labels)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the images and the labels."""
        yield from (self.images, self.labels)


class ClassFolders(Dataset[tuple[Tensor, int, str]]):
    """The images of a split, a folder for each class; random numbers depend on seed, epoch and image alone."""

    def __init__(
        self,
        root: str | Path,
        split: str,
        transform: Callable[[Image.Image], Tensor],
        seed: int = 0,
        upright: bool = False,
    ) -> None:
        folder = Path(root) / split
        self.classes = class_names(root, split)
        found = [image_files(folder / name) for name in self.classes]
        if empty := [name for name, files in zip(self.classes, found) if not files]:
            among = f"{len(empty)} of {len(self.classes)} class folders"
            raise InputError(f"{folder}: {among} hold no images: {first_names(empty, 3)}")
        self.folder = folder
        self.samples = [(str(file), number) for number, files in enumerate(found) for file in files]
        self.transform = transform
        self.seed = seed
        self.upright = upright

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def metadata(self) -> Metadata:
        """The classes, all of them things."""
        count = len(self.classes)
        return Metadata(0, count, self.classes, [(0, 0, 0)] * count, list(range(count)))

    def file_name(self, index: int) -> str:
        """Return the path of an image."""
        return self.samples[index][0]

    def __getitem__(self, key: int | SampleIndex) -> tuple[Tensor, int, str]:
        """Return the transformed image, its class and its name; InputError for one that cannot be read or cropped."""
        epoch, index = key[:2] if isinstance(key, tuple) else (0, key)
        path, label = self.samples[index]
        image = open_image(path, upright=self.upright)
        state, value = random.getstate(), random.Random(f"{self.seed}/{epoch}/{index}").getrandbits(63)
        with torch.random.fork_rng(devices=[]):
            random.seed(value)
            # not torch.manual_seed, which also seeds the GPUs
            torch.default_generator.manual_seed(value)
            try:
                item = self.transform(image)
            except ValueError as error:
                raise InputError(f"{path}: {image.width} x {image.height} pixels: {error}") from None
            finally:
                random.setstate(state)
        return item, label, str(Path(path).relative_to(self.folder))

    def check_classes(self, config: ClassifierConfig, others: Sequence[str] | None = None) -> None:
        """Raise InputError unless the network and another split have these classes."""
        if others is not None and self.classes != list(others):
            differing = first_names(sorted(set(self.classes) ^ set(others)), 3)
            raise InputError(f"{self.folder.parent}: {TRAIN} and {VAL} have other class folders: {differing}")
        if len(self.classes) != config.network.classes:
            raise InputError(
                f"{self.folder}: has {len(self.classes)} class folders, but {config.source} has network.classes = "
                f"{config.network.classes}; `overrides=network.classes={len(self.classes)}` fits them"
            )


def class_names(root: str | Path, split: str) -> list[str]:
    """Return the names of the class folders of a split, sorted; InputError if there are none."""
    folder = Path(root) / split
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; it must hold one folder of images for each class")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry.name))
    if not names:
        raise InputError(f"{folder}: has no class folders; put the images of each class into a folder")
    return names


def collate_images(items: Sequence[tuple[Tensor, int, str]]) -> ImageBatch:
    """Collate items of :class:`ClassFolders`, as a DataLoader's `collate_fn`."""
    images, labels, ids = zip(*items)
    return ImageBatch(torch.stack(images), torch.tensor(labels), list(ids))


TEN_CROPS = 10
"""Four corners and centre, of the image and of its mirror image."""

_GRAY = (0.299, 0.587, 0.114)
_LARGEST_CHANGE, _DEVIATION = 0.4, 0.1
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


def color_jitter(image: Tensor) -> Tensor:
    """Blend with the gray image, black and the mean of the gray image, by factors of 0.6 to 1.4, in random order."""
    others: list[Callable[[Tensor], Tensor]] = [_gray, torch.zeros_like, lambda x: _gray(x).mean().expand_as(x)]
    for other in random.sample(others, 3):
        factor = 1 + torch.empty(1).uniform_(-_LARGEST_CHANGE, _LARGEST_CHANGE)
        image = torch.lerp(other(image), image, factor)
    return image


def lighting(image: Tensor) -> Tensor:
    """Add a multiple of each principal component of the colours of ImageNet, drawn from a normal distribution."""
    factors = torch.empty(3).normal_(0, _DEVIATION)
    components = torch.tensor(_EIGENVECTORS) * torch.tensor(_EIGENVALUES)
    return image + (components * factors).sum(1)[:, None, None]


def to_float(image: Image.Image | np.ndarray) -> Tensor:
    """Convert an RGB image to `3 x H x W` float32, values 0 to 1."""
    # torchvision multiplies by 1 / 255, which differs in the last bit
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def train_transform(options: InputConfig, min_crop_area: float = 0.08) -> v2.Compose:
    """Return the transform of training images: an RGB image to `3 x crop_train x crop_train` float32."""
    steps: list[Callable[..., Any]] = []
    if options.scale_train > 0:
        steps.append(v2.Resize(options.scale_train))
    steps += [v2.RandomResizedCrop(options.crop_train, (min_crop_area, 1.0)), v2.RandomHorizontalFlip(), to_float]
    if options.color_jitter_train:
        steps.append(color_jitter)
    if options.lighting_train:
        steps.append(lighting)
    return v2.Compose([*steps, _normalise(options)])


def test_transform(options: InputConfig, ten_crops: bool = False) -> v2.Compose:
    """Return the transform of validation images, to `3 x crop x crop`, or `10 x 3 x crop x crop` of ten crops."""
    scale, crop = options.scale_val, options.crop_val
    if 0 < scale < crop:
        raise InputError(
            f"input.crop_val = {crop}: does not fit into images whose shorter side is {scale}; raise input.scale_val"
        )
    if not ten_crops:
        # exported classifiers prepare images in the same way, without torchvision
        size = InputSize(scale if scale > 0 else None, crop=(crop, crop))
        return v2.Compose([partial(network_input, size=size), to_float, _normalise(options)])
    steps: list[Callable[..., Any]] = [v2.Resize(scale)] if scale > 0 else []
    return v2.Compose([*steps, v2.TenCrop(crop), partial(_stacked, _normalise(options))])


def _normalise(options: InputConfig) -> v2.Normalize:
    return v2.Normalize(list(options.mean), list(options.std))


def _stacked(normalise: v2.Normalize, images: Sequence[Image.Image]) -> Tensor:
    return torch.stack([normalise(to_float(image)) for image in images])


def _gray(image: Tensor) -> Tensor:
    red, green, blue = (weight * channel for weight, channel in zip(_GRAY, image))
    gray: Tensor = (red + green + blue).expand_as(image)
    return gray
