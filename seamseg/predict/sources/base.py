"""A photo that `predict` works on, by itself or in a container; where it comes from and what its outputs are called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from seamseg.data.images import open_image
from seamseg.utils.errors import UnreadableImage
from seamseg.utils.urls import is_url, read_url

PHOTO_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
    ".gif",
    ".ppm",
    ".pgm",
    ".avif",
)
"""Files that a folder is searched for, whatever the case of their ending."""


@dataclass(frozen=True)
class Source:
    """A photo: its path, the name of its outputs (`/` between folders, no ending), its path below the input folder.

    What is no file of its own on this machine has an `address` instead: a URL, a frame of a video, a member of a shard.
    What cannot be read for sure says why in `problem`: a folder without permission, the place where a video breaks off.
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
        """Itself: a photo by itself is an item, too."""
        return self

    def open(self) -> Image.Image:
        """Decode it, see :func:`open_image`; UnreadableImage if that fails."""
        if self.problem:
            raise UnreadableImage(f"{self}: {self.problem}")
        if self.address:
            return open_image(self.address, read_url(self.address))
        return open_image(self.path)

    def stamp(self) -> str:
        """Changes when the file changes; empty where that cannot be told."""
        return "" if self.address else file_stamp(self.path)


class Item(Protocol):
    """A photo that is read where it stands in a container: `open` must be called before the next one is asked for."""

    @property
    def source(self) -> Source: ...

    def open(self) -> Image.Image: ...


class Container(Protocol):
    """Many photos in one file, whose names are known only as it is read: a video, a shard."""

    @property
    def name(self) -> str:
        """What the names of its photos begin with"""

    def items(self) -> Iterator[Item]:
        """Its photos in order, the same ones each time; where it breaks off, the last fails to open."""

    def stamp(self) -> str:
        """As :meth:`Source.stamp`"""


def file_stamp(path: Path) -> str:
    """Size and time of change of a file; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}"


@dataclass(frozen=True)
class PhotoFile:
    """What containers have in common: a file on disk or at a URL, its name, and its path below the input folder."""

    place: str
    name: str
    relative: str

    def stamp(self) -> str:
        """See `Source.stamp`"""
        return "" if is_url(self.place) else file_stamp(Path(self.place))
