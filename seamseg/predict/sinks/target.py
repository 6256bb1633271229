"""What OUT of `predict` means: a folder, tar shards, and either of them on this machine or at a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from seamseg.predict.sources.base import PHOTO_ENDINGS
from seamseg.utils.errors import InputError
from seamseg.utils.urls import is_url

_NUMBER = re.compile(r"%0?(\d*)d|\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Numbering:
    """Names of shards: what stands before and behind the number, its digits, the first and the last one, if any."""

    before: str
    behind: str
    digits: int
    first: int = 0
    last: int | None = None

    def name(self, number: int) -> str:
        """The shard of a number."""
        return f"{self.before}{number:0{self.digits}}{self.behind}"

    def owns(self, name: str) -> bool:
        """Whether a file name is that of a shard."""
        number = name.removeprefix(self.before).removesuffix(self.behind)
        return number.isdecimal() and name == self.name(int(number))

    @property
    def text(self) -> str:
        """The names, as people write them."""
        return f"{self.before}*{self.behind}"


@dataclass(frozen=True)
class Place:
    """A folder or URL, and how the shards in it are called; None for single files."""

    folder: str
    shards: Numbering | None = None

    @property
    def is_url(self) -> bool:
        """Whether it is reached through fsspec."""
        return is_url(self.folder)

    @property
    def path(self) -> Path | None:
        """The folder, if it lies on this machine; also of a `file://` URL."""
        if self.is_url:
            return Path(self.folder[7:]) if self.folder.startswith("file://") else None
        return Path(self.folder)

    def holds(self, place: str) -> bool:
        """Whether a path or URL is that of an output, so that an earlier run's are not taken for photos."""
        if self.shards is not None:
            folder, _, name = place.rpartition("/")
            return self.shards.owns(name) and plain(folder or ".") == plain(self.folder)
        return self.is_url and plain(place).startswith(f"{plain(self.folder)}/")


def parse_place(out: str) -> Place:
    """The place that OUT names.

    Shards have a number in their name, `part-%06d.tar` or `part-{000000..000999}.tar`; anything else is a folder.

    Raises
    ------
    InputError
        if it is empty, looks like a photo, or like a shard but has no number that can be understood
    """
    if not out.strip():
        raise InputError("OUT is empty, is a variable not set? `.` is the working folder")
    if out.lower().endswith(PHOTO_ENDINGS) and not (is_url(out) or Path(out).is_dir()):
        raise InputError(f"{out}: looks like a photo; the last argument must be the folder for the outputs")
    if re.match(r"[A-Za-z][\w+.-]+:/[^/]", out):
        raise InputError(f"{out}: URLs have two slashes behind the colon, as s3://bucket/out")
    folder, slash, name = out.rpartition("/")
    if not name.lower().endswith((".tar", ".tar.gz", ".tgz")) or (not is_url(out) and Path(out).is_dir()):
        return Place(out.rstrip("/") or out)
    found = list(_NUMBER.finditer(name))
    if len(found) != 1 or not name.endswith(".tar"):
        raise InputError(
            f"{out}: shards need one number in their name and end with .tar, as 'part-%06d.tar' or "
            "'part-{000000..000999}.tar'"
        )
    (number,) = found
    before, behind = name[: number.start()], name[number.end() :]
    digits, first, last = number.groups()
    if first is None:
        numbering = Numbering(before, behind, int(digits or 1))
    else:
        numbering = Numbering(before, behind, len(first), int(first), int(last))
        if int(last) < int(first):
            raise InputError(f"{out}: the last number of the shards is below the first")
    return Place(folder or (slash or "."), numbering)


def plain(place: str) -> str:
    """A path or URL in the one way that can be compared with others."""
    scheme, mark, rest = place.partition("://")
    if not mark or scheme == "file":
        return f"file://{Path(rest if mark else place).resolve()}"
    return f"{scheme}://{'/'.join(part for part in rest.split('/') if part not in ('', '.'))}"
