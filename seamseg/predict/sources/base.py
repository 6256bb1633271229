"""The images that `predict` works on: single files, and items of containers such as videos and shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from PIL import Image

from seamseg.data.images import open_image
from seamseg.predict.part import Part
from seamseg.utils.errors import UnreadableImage
from seamseg.utils.limits import PHOTO_NAME_BYTES
from seamseg.utils.urls import is_url, read_url


@dataclass(frozen=True)
class Source:
    """An image.

    Attributes
    ----------
    path : path of the file
    name : name of its outputs, with `/` between folders and without an ending
    relative : path relative to the input folder
    address : address of an image that is not a local file of its own: a URL, a frame of a video, a member of a shard
    problem : why it certainly cannot be read: a folder without permission, the place where a video breaks off
    """

    path: Path
    name: str
    relative: str
    address: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return self.address or str(self.path)

    @property
    def source(self) -> Source:
        """The image itself: a single image is a `SourceItem`, too."""
        return self

    def open(self) -> Image.Image:
        """Decode the image, see :func:`open_image`; UnreadableImage if that fails."""
        if self.problem:
            raise UnreadableImage(f"{self}: {self.problem}")
        if self.address:
            return open_image(self.address, read_url(self.address))
        return open_image(self.path)

    def stamp(self) -> str:
        """Return a text that changes when the file changes; empty for images that are not local files."""
        return "" if self.address else file_stamp(self.path)


class SourceItem(Protocol):
    """An image of a container, which is read as a stream: call `open` before the next item is requested."""

    @property
    def source(self) -> Source:
        """The image."""
        ...

    def open(self) -> Image.Image:
        """Decode the image."""
        ...


class Container(Protocol):
    """A file of many images, whose names are known only after reading it: a video, a shard."""

    @property
    def name(self) -> str:
        """First part of the names of its images."""

    @property
    def relative(self) -> str:
        """Path relative to the input folder."""

    def items(self) -> Iterator[SourceItem]:
        """Iterate over its images, always in the same order; opening the last fails if the file is truncated."""

    def stamp(self) -> str:
        """See :meth:`Source.stamp`."""


@dataclass(frozen=True)
class FirstItems:
    """A container of which only the first `limit` images are used."""

    container: Container
    limit: int

    @property
    def name(self) -> str:
        """See :attr:`Container.name`."""
        return self.container.name

    @property
    def relative(self) -> str:
        """See :attr:`Container.relative`."""
        return self.container.relative

    def items(self) -> Iterator[SourceItem]:
        """See :meth:`Container.items`."""
        return islice(self.container.items(), self.limit)

    def stamp(self) -> str:
        """See :meth:`Source.stamp`."""
        return self.container.stamp()


def limited(sources: Sequence[Source | Container], limit: int | None) -> list[Source | Container]:
    """Return the first `limit` images and every container, with its own first `limit` images; None for no limit."""
    if limit is None:
        return list(sources)
    chosen: list[Source | Container] = []
    photos = 0
    for source in sources:
        if not isinstance(source, Source):
            chosen.append(FirstItems(source, limit))
        elif photos < limit:
            chosen.append(source)
            photos += 1
    return chosen


def of_part(sources: Sequence[Source | Container], part: Part | None) -> list[Source | Container]:
    """Return the images and containers of a part; all containers if there are fewer than parts, which divide them."""
    if part is None:
        return list(sources)
    photos = [source for source in sources if isinstance(source, Source)]
    containers = [source for source in sources if not isinstance(source, Source)]
    whole = len(containers) >= part.count
    return [*part.select(photos), *(part.select(containers) if whole else containers)]


def file_stamp(path: Path) -> str:
    """Return size and modification time of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}"


def name_problem(relative: str, address: str = "") -> str:
    """Return why an image cannot be read, or its outputs have no name, by its path and address; empty if nothing is."""
    if "\0" in relative or "\0" in address:
        return "its name has a NUL character"
    if len(relative.encode("utf-8", "surrogatepass")) > PHOTO_NAME_BYTES:
        return f"its name is longer than {PHOTO_NAME_BYTES} bytes"
    return ""


def stand_in(name: str) -> str:
    """Return a name for an image whose own cannot be used, the same in each run."""
    return f"{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}.name"


@dataclass(frozen=True)
class ContainerFile:
    """Base of containers: a local file or URL, its name, and its path relative to the input folder."""

    address: str
    name: str
    relative: str

    def stamp(self) -> str:
        """See :meth:`Source.stamp`."""
        return "" if is_url(self.address) else file_stamp(Path(self.address))
