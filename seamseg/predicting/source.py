"""An image that `predict` works on: a file, or a frame of a video."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from seamseg.maps.images import open_image
from seamseg.utils.errors import UnreadableImage


@dataclass(frozen=True)
class Source:
    """An image: the path of its file, and the name of its outputs, with `/` between folders and without an ending.

    `relative` is the path relative to the input folder. `address` names an image that is not a file of its own, such as
    a frame of a video; `problem` is why it certainly cannot be read: a folder without permission, the place where a
    video breaks off.
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
        """The image itself, as of a frame of a video."""
        return self

    def open(self) -> Image.Image:
        """Decode the image, see :func:`open_image`; UnreadableImage if that fails."""
        if self.problem:
            raise UnreadableImage(f"{self}: {self.problem}")
        return open_image(self.path)

    def stamp(self) -> str:
        """Return a text that changes when the file changes; empty for images that are not files of their own."""
        return "" if self.address else file_stamp(self.path)


def file_stamp(path: Path) -> str:
    """Return size and modification time of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}"
