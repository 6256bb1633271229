"""The OUT argument of `predict`: a folder or a URL, for single files or for tar shards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from seamseg.data.images import PHOTO_ENDINGS
from seamseg.utils.errors import InputError
from seamseg.utils.urls import is_url

_NUMBER = re.compile(r"%0?(\d*)d|\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class ShardPattern:
    """File names of shards.

    Attributes
    ----------
    prefix, suffix : the name before and after the number
    digits : least digits of the number, padded with zeros
    first, last : range of the numbers; no upper limit if `last` is None
    """

    prefix: str
    suffix: str
    digits: int
    first: int = 0
    last: int | None = None

    def name(self, number: int) -> str:
        """Return the file name of a shard by its number."""
        return f"{self.prefix}{number:0{self.digits}}{self.suffix}"

    def number(self, name: str) -> int | None:
        """Return the number of a shard by its file name; None for other files."""
        digits = name.removeprefix(self.prefix).removesuffix(self.suffix)
        return int(digits) if digits.isdecimal() and name == self.name(int(digits)) else None

    @property
    def text(self) -> str:
        """The pattern with `*` for the number."""
        return f"{self.prefix}*{self.suffix}"


@dataclass(frozen=True)
class OutputTarget:
    """A folder or URL, and the names of the shards in it; `shards` is None for single files."""

    folder: str
    shards: ShardPattern | None = None

    @property
    def is_url(self) -> bool:
        """Whether the target is accessed through fsspec."""
        return is_url(self.folder)

    @property
    def path(self) -> Path | None:
        """The local folder, also of a `file://` URL; None for other URLs."""
        if self.is_url:
            return Path(self.folder[7:]) if self.folder.startswith("file://") else None
        return Path(self.folder)

    def owns(self, address: str) -> bool:
        """Return whether a path or URL is an output, so that outputs of an earlier run are not taken for images."""
        if self.shards is not None:
            folder, _, name = address.rpartition("/")
            return self.shards.number(name) is not None and normalized(folder or ".") == normalized(self.folder)
        return self.is_url and normalized(address).startswith(f"{normalized(self.folder)}/")


def parse_target(out: str) -> OutputTarget:
    """Parse OUT: a name with a number, `part-%06d.tar` or `part-{000000..000999}.tar`, means shards, others a folder.

    Raises
    ------
    InputError
        if it is empty, looks like an image, or like a shard without a valid number
    """
    if not out.strip():
        raise InputError("OUT is empty, is a variable not set? `.` is the working folder")
    if out.lower().endswith(PHOTO_ENDINGS) and not (is_url(out) or Path(out).is_dir()):
        raise InputError(f"{out}: looks like an image; the last argument must be the folder for the outputs")
    if re.match(r"[A-Za-z][\w+.-]+:/[^/]", out):
        raise InputError(f"{out}: URLs have two slashes after the colon, as s3://bucket/out")
    folder, slash, name = out.rpartition("/")
    if not name.lower().endswith((".tar", ".tar.gz", ".tgz")) or (not is_url(out) and Path(out).is_dir()):
        return OutputTarget(out.rstrip("/") or out)
    found = list(_NUMBER.finditer(name))
    if len(found) != 1 or not name.endswith(".tar"):
        raise InputError(
            f"{out}: names of shards need exactly one number and end with .tar, as 'part-%06d.tar' or "
            "'part-{000000..000999}.tar'"
        )
    (number,) = found
    prefix, suffix = name[: number.start()], name[number.end() :]
    digits, first, last = number.groups()
    if first is None:
        pattern = ShardPattern(prefix, suffix, int(digits or 1))
    else:
        pattern = ShardPattern(prefix, suffix, len(first), int(first), int(last))
        if int(last) < int(first):
            raise InputError(f"{out}: the last number of the shards is below the first")
    return OutputTarget(folder or (slash or "."), pattern)


def normalized(address: str) -> str:
    """Return a path or URL in a form that can be compared with others."""
    scheme, mark, rest = address.partition("://")
    if not mark or scheme == "file":
        return f"file://{Path(rest if mark else address).resolve()}"
    return f"{scheme}://{'/'.join(part for part in rest.split('/') if part not in ('', '.'))}"
