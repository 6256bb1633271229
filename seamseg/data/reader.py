"""Readers of data sets: what a training and a validation read of a split; no torch.

`[dataloader] reader` chooses one: for dataset folders (:class:`FolderReader`), or a custom one
(docs/how-to/extend.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seamseg.config.components import Component, register
from seamseg.maps.folder import MAP_ENDINGS, DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata, metadata_header, metadata_of
from seamseg.maps.images import open_image, open_map, open_reduced
from seamseg.utils.errors import InputError, UnreadableImage, instance_of, named_errors
from seamseg.utils.files import join_inside

if TYPE_CHECKING:
    from PIL import Image

    from seamseg.config import Config


class Reader(ABC):
    """A split of a data set; derive from it, and register the class with :func:`seamseg.components.reader`.

    An :class:`InputError`, such as those of :func:`seamseg.components.open_image`, is reported as it is, another
    exception with file and line. Worker processes get a copy of the reader.

    Parameters
    ----------
    root : path that the command line or the caller names
    split : name of the split
    keys : values of the section `[reader NAME]`

    Attributes
    ----------
    metadata : classes of the data set
    images : id, size and instances of each image of the split, in the order of its indices
    """

    metadata: Metadata
    images: list[ImageInfo]

    def __init__(self, root: str | Path, split: str, keys: Any = None) -> None:
        self.root = Path(root)
        self.split = split
        self.keys = keys

    def __len__(self) -> int:
        return len(self.images)

    @abstractmethod
    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image | np.ndarray:
        """Read an image, RGB: of Pillow, or uint8 `H x W x 3`.

        With `at_least`, `(height, width)`, it may be decoded at a reduced size that is not below it.
        """

    @abstractmethod
    def read_masks(self, index: int) -> np.ndarray:
        """Read the instance ids of an image, integers `L x H x W`, 0 void."""

    def read_map(self, index: int, folder: str) -> np.ndarray | None:
        """Read a map of :class:`seamseg.maps.folder.ReadMap` as it is stored.

        Returns
        -------
        numbers `H x W` or `channels x H x W`; None if the image has none
        """
        raise InputError(f"{self.root}: its reader reads no maps, such as {folder}: define its method read_map")

    def file_name(self, index: int) -> str:
        """Return the name of an image in errors, whether it exists or not."""
        return f"{self.root}: image {self.images[index].id}"

    def begin_worker(self) -> None:  # noqa: B027  # not every reader has open files
        """Prepare this copy of the reader in a worker process: close files that the main process has open."""


@contextmanager
def reader_errors(component: Component, where: str) -> Iterator[None]:
    """Name a reader in errors of its code; `where`, a path or an image, in an InputError that names no file.

    Those of :class:`UnreadableImage`, as :func:`seamseg.components.open_image` raises them, name theirs.
    """
    try:
        with named_errors(f"{where}: {component.section}", component.module):
            yield
    except InputError as error:
        if component.built_in or isinstance(error, UnreadableImage) or where.partition(": ")[0] in str(error):
            raise
        raise InputError(f"{where}: {component.section}: {error}") from error


OpenReader = Callable[[str | Path, str], Reader]
"""Opens the reader of a path and a split."""


def open_reader(config: Config, root: str | Path, split: str) -> Reader:
    """Open the reader that `[dataloader] reader` chooses."""
    component, keys = config.component("reader")
    with reader_errors(component, str(root)):
        made = component.make(Path(root), split, keys)
        reader = instance_of(Reader, made, f"{root}: reader {component.name}")  # type: ignore[type-abstract]
        metadata_of(metadata_header(reader.metadata), f"{root}: reader {component.name}", reader.images)
        if not len(reader):
            raise InputError(f"{root}: reader {component.name} finds no image in split {split!r}")
    return reader


@register("reader", "folder")
class FolderReader(Reader):
    """A split of a dataset folder, by its list `lst/SPLIT.txt`."""

    def __init__(self, root: str | Path, split: str, keys: Any = None) -> None:
        super().__init__(root, split, keys)
        self.folder = DatasetFolder(root)
        self.metadata = self.folder.metadata
        self.images = self.folder.split(split)

    def file_name(self, index: int) -> str:
        """Return the path of an image."""
        try:
            return str(self.folder.image_path(self.images[index].id))
        except InputError:
            return str(self.root / "img" / self.images[index].id)

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """Read an image, of the size in the metadata; a JPEG may be reduced."""
        info = self.images[index]
        path = self.folder.image_path(info.id)
        if at_least is None:
            image = open_image(path)
            size = (image.height, image.width)
        else:
            image, size = open_reduced(path, at_least)
        if size != info.size:
            rotated = " (it is rotated by its EXIF orientation)" if size == info.size[::-1] else ""
            raise InputError(
                f"{path}: the image is {size[1]} x {size[0]} pixels (width x height), but its mask and "
                f"metadata.bin have {info.size[1]} x {info.size[0]}{rotated}; "
                "restore the image that the mask was drawn on, or prepare the data set again"
            )
        return image

    def read_masks(self, index: int) -> np.ndarray:
        """Read the instance ids of an image."""
        return self.folder.read_mask(self.images[index].id)

    def read_map(self, index: int, folder: str) -> np.ndarray | None:
        """Read `FOLDER/ID.png` or `FOLDER/ID.npy`; None if there is none, InputError if there is no such folder."""
        stem = join_inside(self.root / folder, self.images[index].id)
        for ending in MAP_ENDINGS:
            if (path := stem.with_name(stem.name + ending)).is_file():
                return open_map(path)
        if not (self.root / folder).is_dir():
            raise InputError(f"{self.root / folder}: no such folder; a head or metric reads its ground truth from it")
        return None
