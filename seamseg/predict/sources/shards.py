"""Tar shards of photos, as WebDataset has them, read from the front to the back."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from PIL import Image

from seamseg.data.images import open_image
from seamseg.predict.sources.base import PHOTO_ENDINGS, Item, PhotoFile, Source
from seamseg.utils.errors import UnreadableImage
from seamseg.utils.limits import PHOTO_BYTES, LimitedTarInfo, SparseMember, detect_compression, format_bytes
from seamseg.utils.urls import describe_error, is_url, open_url

SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz")


def is_shard(place: str) -> bool:
    """Whether a path or URL is that of a tar file."""
    return place.lower().endswith(SHARD_ENDINGS)


def _is_photo(member: str) -> bool:
    # hidden files as in folders: a Mac's `._a.jpg` beside each `a.jpg` is no picture
    path = PurePosixPath(member)
    return path.name.lower().endswith(PHOTO_ENDINGS) and not path.name.startswith(".")


class _Begun:
    """A file of which the first bytes have been looked at."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.head = file.read(6)

    def read(self, count: int) -> bytes:
        """As of a file."""
        data, self.head = self.head[:count], self.head[count:]
        return data + self._file.read(count - len(data))


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The photos of a tar file."""
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # it keeps all of them, and a small file may have many
        if member.issparse():
            raise SparseMember(member.name)
        if member.isfile() and _is_photo(member.name):
            yield member


@dataclass(frozen=True)
class Member:
    """A photo of a shard."""

    source: Source
    content: bytes = field(repr=False)

    def open(self) -> Image.Image:
        """Decode it; UnreadableImage if that fails."""
        return open_image(self.source.address, self.content)


@dataclass(frozen=True)
class Shard(PhotoFile):
    """A tar file of photos, on disk or at a URL; other members, such as labels and JSON, are passed over.

    Photos are called `<shard>/<member without ending>`; a second one of the same key keeps its ending.
    """

    def items(self) -> Iterator[Item]:
        """The photos in order; one that cannot be opened where the shard breaks off."""
        seen: set[str] = set()
        try:
            with closing(self._file()) as file:
                begun: Any = _Begun(file)
                # other compressions inflate a block to any size
                if kind := detect_compression(begun.head):
                    yield self._broken(0, f"is compressed by {kind}, which is not read; compress it by gzip instead")
                    return
                mode: Any = "r|gz" if begun.head.startswith(b"\x1f\x8b") else "r|"
                with tarfile.open(fileobj=begun, mode=mode, tarinfo=LimitedTarInfo) as archive:
                    for member in _members(archive):
                        if member.size > PHOTO_BYTES:
                            size, limit = format_bytes(member.size), format_bytes(PHOTO_BYTES)
                            problem = f"{size} are above {limit}, the limit of a photo"
                            yield replace(self._source(member.name, seen), problem=problem)
                            continue
                        stream = archive.extractfile(member)
                        assert stream is not None
                        content = stream.read()
                        if len(content) < member.size:
                            raise EOFError("it ends in the middle of a file")
                        yield Member(self._source(member.name, seen), content)
        except SparseMember as error:
            yield self._broken(len(seen), f"cannot be read after {len(seen)} images: {error} is a sparse file")
        except UnreadableImage as error:
            yield self._broken(len(seen), str(error).removeprefix(f"{self.place}: "))
        except OSError as error:
            yield self._broken(len(seen), f"cannot be read after {len(seen)} images: {describe_error(error)}")
        except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
            yield self._broken(len(seen), f"broken tar after {len(seen)} images: {describe_error(error)}")

    def _file(self) -> IO[bytes]:
        return open_url(self.place) if is_url(self.place) else open(self.place, "rb")

    def _source(self, member: str, seen: set[str]) -> Source:
        # a hostile archive must not name files outside of its folder
        parts = [part for part in PurePosixPath(member).parts if part not in ("/", "..", ".")]
        below = PurePosixPath(*parts)
        name = str(below.with_suffix(""))
        if name.casefold() in seen:
            name = str(below)
        number = 2
        while name.casefold() in seen:
            name, number = f"{below}.{number}", number + 1
        seen.add(name.casefold())
        return Source(Path(member), f"{self.name}/{name}", f"{self.relative}/{below}", f"{self.place}:{member}")

    def _broken(self, count: int, problem: str) -> Source:
        return Source(Path(self.place), f"{self.name}/{count:06}.broken", self.relative, self.place, problem)
