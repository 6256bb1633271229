"""Images in class folders (`DATA/train/<class>/*`, `DATA/val/<class>/*`), and batches of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from seamseg.contrib.classification.config import ClassifierConfig
from seamseg.data.loader import BatchLoader, LoaderOptions, shard_loader, train_loader
from seamseg.data.samplers import DistributedARBatchSampler, SampleIndex
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.images import image_files, open_image
from seamseg.utils.distributed import World
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
    """The images of the split `train` or `val`, from one folder for each class.

    `transform` makes a tensor of an RGB image; its numbers from `random` and torch's global generator depend on `seed`,
    the epoch and the image alone. `upright` applies the EXIF orientation, as prediction does and the original
    does not.

    InputError if there are no class folders, or one without images. Hidden files and folders are ignored.
    """

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
        with _seeded(f"{self.seed}/{epoch}/{index}"):
            try:
                item = self.transform(image)
            except ValueError as error:
                raise InputError(f"{path}: {image.width} x {image.height} pixels: {error}") from None
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


@contextmanager
def _seeded(text: str) -> Iterator[None]:
    """Seed the global generators of Python and torch (of the CPU) inside a `with` block."""
    state, value = random.getstate(), random.Random(text).getrandbits(63)
    with torch.random.fork_rng(devices=[]):
        random.seed(value)
        # not torch.manual_seed, which also seeds the GPUs
        torch.default_generator.manual_seed(value)
        try:
            yield
        finally:
            random.setstate(state)


def collate_images(items: Sequence[tuple[Tensor, int, str]]) -> ImageBatch:
    """Collate items of :class:`ClassFolders`, as a DataLoader's `collate_fn`."""
    images, labels, ids = zip(*items)
    return ImageBatch(torch.stack(images), torch.tensor(labels), list(ids))


def open_train_loader(dataset: ClassFolders, config: ClassifierConfig, world: World) -> BatchLoader:
    """Return the loader of the training batches of this process, shuffled in each epoch."""
    training = config.training
    # all images have the size of the crop, so that the aspect ratios do not matter
    sizes = [(1, 1)] * len(dataset)
    sampler = DistributedARBatchSampler(
        sizes, config.batch_per_process(world.size), world.size, world.rank, training.drop_last, seed=training.seed
    )
    return train_loader(dataset, sampler, LoaderOptions.of(training, training.seed, world), collate_images)


def open_val_loader(dataset: ClassFolders, batch_size: int, num_workers: int, world: World) -> BatchLoader:
    """Return the loader of the images that this process alone reads."""
    pinned = world.device.type == "cuda"
    return shard_loader(
        dataset, num_workers, world, batch_size=batch_size, collate_fn=collate_images, pin_memory=pinned
    )
