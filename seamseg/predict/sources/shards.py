"""Tar shards of images in the layout of WebDataset, read as a stream."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from PIL import Image

from seamseg.data.images import PHOTO_ENDINGS, open_image
from seamseg.predict.sources.base import ContainerFile, Source, SourceItem, name_problem, stand_in
from seamseg.utils.errors import UnreadableImage, harmless
from seamseg.utils.limits import (
    MIB,
    PHOTO_BYTES,
    LimitedTarInfo,
    TooLarge,
    check_member,
    detect_compression,
    format_bytes,
)
from seamseg.utils.urls import describe_error, is_url, open_url

_EMPTY_READS = 100
_BLOCK_BYTES = 64 << 10
_PADDING_BYTES = MIB
"""Largest padding after the end mark of a tar file that is read; programs write up to 10 KiB."""
SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz")


def is_shard(address: str) -> bool:
    """Return whether a path or URL is that of a tar file, by its ending."""
    return address.lower().endswith(SHARD_ENDINGS)


def _is_photo(member: str) -> bool:
    # hidden files are ignored, as in folders: macOS puts `._a.jpg`, not an image, beside each `a.jpg`
    path = PurePosixPath(member)
    return path.name.lower().endswith(PHOTO_ENDINGS) and not path.name.startswith(".")


class _Peeked:
    """A file whose first bytes have been read in advance; it counts what is read.

    Attributes
    ----------
    head : the first bytes
    count : bytes that have been read
    may_repeat : whether the end may be read again and again
    """

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self.head = file.read(6)
        self.count = self._empty = 0
        self.may_repeat = False

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes.

        Raises
        ------
        EOFError
            if it is called again and again after the end: `tarfile` skips a file of any stated size by reading;
            unless `may_repeat`
        """
        data, self.head = self.head[:count], self.head[count:]
        data += self._read(count - len(data))
        self.count += len(data)
        self._empty += not data
        if self._empty > _EMPTY_READS and not self.may_repeat:
            raise EOFError("it ends in the middle of a file")
        return data

    def _read(self, count: int) -> bytes:
        if not isinstance(self._file, gzip.GzipFile):
            return self._file.read(count)
        parts: list[bytes] = []
        try:
            while count > 0 and (part := self._file.read1(count)):
                parts.append(part)
                count -= len(part)
        except (EOFError, OSError):
            # what is inflated comes first; the next call fails again
            if not parts:
                raise
        return b"".join(parts)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Iterate over the images of a tar file."""
    # empty: Python 3.10 would go back in the stream
    if archive.firstmember is None:  # type: ignore[attr-defined]
        return
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # they are kept otherwise, and a small file may have many
        if not member.isdir() and _is_photo(member.name):
            yield member


def _problem(member: tarfile.TarInfo) -> str:
    """Return why an image of a tar file cannot be read, as far as its header tells."""
    if member.issparse():
        return "is packed as a sparse file; pack it as a plain one"
    if not member.isfile():
        return "is a link or device; pack the file itself"
    if member.size > PHOTO_BYTES:
        return f"{format_bytes(member.size)} are above {format_bytes(PHOTO_BYTES)}, the limit of an image"
    return ""


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, peeked: _Peeked) -> bytes:
    """Read an image of a tar file.

    Raises
    ------
    TooLarge
        if it is compressed more than images are, as soon as that is known
    EOFError
        if the tar file ends in it
    """
    stream = archive.extractfile(member)
    assert stream is not None
    begin, size, parts = peeked.count, 0, []
    while data := stream.read(4 * MIB):
        parts.append(data)
        size += len(data)
        check_member(member.name, peeked.count - begin, size, PHOTO_BYTES, "image")
    if size < member.size:
        raise EOFError("it ends in the middle of a file")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_checksum(content: _Peeked) -> None:
    """Read a compressed file to its end, where its checksum is; OSError if it is that of other content."""
    try:
        for _ in range(_PADDING_BYTES // _BLOCK_BYTES):
            if not content.read(_BLOCK_BYTES):
                return
    except gzip.BadGzipFile as error:
        if "Not a gzipped file" not in str(error):  # bytes after it, which gzip ignores, too
            raise


@dataclass(frozen=True)
class ShardMember:
    """An image of a shard."""

    source: Source
    content: bytes = field(repr=False)

    def open(self) -> Image.Image:
        """Decode the image; UnreadableImage if that fails."""
        return open_image(self.source.address, self.content)


@dataclass(frozen=True)
class Shard(ContainerFile):
    """A tar file of images, local or at a URL; other members, such as labels and JSON, are ignored.

    Images are named `<shard>/<member without ending>`; a second image with the same key keeps its ending.
    """

    def items(self) -> Iterator[SourceItem]:
        """Iterate over the images; where the shard is truncated, over one that cannot be opened."""
        seen: dict[str, int] = {}
        try:
            with closing(self._file()) as file:
                peeked: Any = _Peeked(file)
                # blocks of other compressions may inflate to any size
                if kind := detect_compression(peeked.head):
                    yield self._broken(0, f"is compressed by {kind}, which is not supported; use gzip instead")
                    return
                # `gzip` asks for more until all is inflated
                packed = peeked.may_repeat = peeked.head.startswith(b"\x1f\x8b")
                # `tarfile` would not compare the checksum
                content: Any = _Peeked(gzip.GzipFile(fileobj=peeked, mode="rb")) if packed else peeked
                with tarfile.open(fileobj=content, mode="r|", tarinfo=LimitedTarInfo) as archive:
                    for member in _members(archive):
                        source = self._source(member.name, seen)
                        try:
                            problem = source.problem or _problem(member)
                            photo = b"" if problem else _read(archive, member, peeked)
                        except TooLarge as error:
                            problem = error.args[0].removeprefix(f"{member.name}: ")
                        yield replace(source, problem=problem) if problem else ShardMember(source, photo)
                if packed:
                    _read_checksum(content)
        except UnreadableImage as error:
            yield self._broken(len(seen), str(error).removeprefix(f"{self.address}: "))
        except OSError as error:
            yield self._broken(len(seen), f"cannot be read after {len(seen)} images: {describe_error(error)}")
        except Exception as error:  # of damaged files and of drivers of URLs: nearly anything
            yield self._broken(len(seen), f"broken tar after {len(seen)} images: {describe_error(error)}")

    def _file(self) -> IO[bytes]:
        return open_url(self.address) if is_url(self.address) else open(self.address, "rb")

    def _source(self, member: str, seen: dict[str, int]) -> Source:
        """Return the source of a member; `seen` has the names before, each with the number of its next duplicate."""
        address = f"{self.address}:{member}"
        if problem := name_problem(member):
            address, member = harmless(address), stand_in(member)
        # a malicious archive must not name files outside of the output folder
        parts = [part for part in PurePosixPath(member).parts if part not in ("/", "..", ".")]
        below = PurePosixPath(*parts)
        name = str(below.with_suffix(""))
        if name.casefold() in seen:
            name = str(below)
        while name.casefold() in seen:
            number = seen[str(below).casefold()]
            name, seen[str(below).casefold()] = f"{below}.{number}", number + 1
        seen[name.casefold()] = 2
        return Source(Path(member), f"{self.name}/{name}", f"{self.relative}/{below}", address, problem)

    def _broken(self, count: int, problem: str) -> Source:
        return Source(Path(self.address), f"{self.name}/{count:06}.broken", self.relative, self.address, problem)
