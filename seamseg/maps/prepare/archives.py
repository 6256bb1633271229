"""Files of a source data set, on disk or in zip files, which are read in place."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from seamseg.maps.images import image_size, open_mask
from seamseg.maps.predictions import MANIFEST
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden, nearest_path, read_bytes
from seamseg.utils.limits import IMAGE_BYTES, check_member, inflate, packed_size

T = TypeVar("T")
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_MADE = {"metadata.bin", ".prepare", MANIFEST}
"""Files of a folder that `prepare`, `train` or `predict` has written."""
_OTHERS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
_UTF8 = 1 << 11
"""Flag of a zip file: the name is UTF-8."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True)
class ArchiveMember:
    """A file in a zip file, with the offset of its header, so that worker processes need not list the archive again."""

    archive: Path
    path: str
    method: int
    offset: int
    packed: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        """The last component of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """The extension, with its dot."""
        return PurePosixPath(self.path).suffix

    def __str__(self) -> str:
        return f"{self.archive}/{self.path}"

    def read_bytes(self, limit: int = IMAGE_BYTES, what: str = "image or map") -> bytes:
        """Return the content of at most `limit` bytes, those of a `what`; InputError also for damage."""
        check_member(str(self), self.packed, self.size, limit, what)
        try:
            with open(self.archive, "rb") as file:
                file.seek(self.offset)
                signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                if signature != b"PK\x03\x04":
                    raise InputError(f"{self}: the archive is damaged; download it again")
                file.seek(name + extra, 1)
                data = file.read(self.packed)
            if self.method == _DEFLATED:
                data = inflate(data, self.size)
        except (OSError, struct.error, zlib.error) as error:
            raise InputError(f"{self}: cannot be unpacked: {error}; download the archive again") from None
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise InputError(f"{self}: the archive is damaged (wrong checksum); download it again")
        return data


File = Path | ArchiveMember


class SourceTree:
    """The folders of a source data set, including the content of the zip files in them.

    `root` is a folder or a zip file. The zip files in `mounts`, folders below `root`, are read as if they had
    been unpacked there in the order of their names; a file on disk takes precedence over one in an archive.

    `hint` is the end of errors about missing files: an archive that cannot be read in place, or empty.
    """

    def __init__(self, root: str | Path, mounts: tuple[str, ...] = ("",)) -> None:
        self.root = Path(root)
        if not self.root.exists():
            raise InputError(f"{self.root}: no such folder or archive{nearest_path(self.root)}")
        self._packed: dict[str, dict[str, ArchiveMember]] = {}
        self.hint = ""
        if self.root.is_file():
            self._add_archive(self.root, "")
        for mount in mounts:
            folder = self.root / mount
            for archive in sorted(folder.iterdir()) if folder.is_dir() else ():
                if archive.is_file() and not is_hidden(archive.name):
                    self._add_archive(archive, mount)

    def files(self, folder: str) -> dict[str, File]:
        """Return the files in a folder by name, sorted; empty if there is no such folder."""
        found: dict[str, File] = dict(self._packed.get(_clean(folder), {}))
        path = self.root / folder
        if path.is_dir():
            found.update((entry.name, entry) for entry in path.iterdir() if entry.is_file())
        return {name: found[name] for name in sorted(found) if not name.startswith(".")}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        prefix = f"{_clean(folder)}/".lstrip("/")
        found = {packed[len(prefix) :].partition("/")[0] for packed in self._packed if packed.startswith(prefix)} - {""}
        path = self.root / folder
        if path.is_dir():
            found.update(entry.name for entry in path.iterdir() if entry.is_dir())
        return sorted(found)

    def file(self, path: str) -> File | None:
        """Return the file with a path, None if there is none."""
        on_disk = self.root / path
        if on_disk.is_file():
            return on_disk
        folder, _, name = _clean(path).rpartition("/")
        return self._packed.get(folder, {}).get(name)

    def all_files(self) -> dict[str, File]:
        """Return all files by relative path, sorted, but hidden ones and folders that `prepare` or `predict` wrote.

        Links to folders are followed.
        """
        found: dict[str, File] = {}
        for folder, members in self._packed.items():
            if not any(map(is_hidden, folder.split("/"))):
                found.update((f"{folder}/{name}".lstrip("/"), file) for name, file in members.items())
        for parent, folders, names in os.walk(self.root, followlinks=True):
            here = Path(parent)
            if here != self.root and _MADE & {*names, *folders}:
                folders.clear()
                continue
            folders[:] = [name for name in folders if not is_hidden(name)]
            found.update(((here / name).relative_to(self.root).as_posix(), here / name) for name in names)
        return {path: found[path] for path in sorted(found) if not PurePosixPath(path).name.startswith(".")}

    def _add_archive(self, archive: Path, mount: str) -> None:
        name = archive.name.lower()
        if name.endswith(_OTHERS):
            self._refuse(archive)
        for member in _zip_members(archive) if name.endswith(".zip") else ():
            folder, _, name = _clean(f"{mount}/{member.path}").rpartition("/")
            self._packed.setdefault(folder, {})[name] = member
            if name.lower().endswith((".zip", *_OTHERS)):
                self._refuse(member)

    def _refuse(self, archive: File) -> None:
        self.hint = self.hint or f"; {archive} cannot be read in place, unpack it"


def _zip_members(archive: Path) -> list[ArchiveMember]:
    try:
        with zipfile.ZipFile(archive) as file:
            entries = [info for info in file.infolist() if info.filename and not info.is_dir()]
            for info in entries:
                packed_size(file, info)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{archive}: not a zip file, or a truncated one ({error}); download it again, or move it away"
        ) from None
    for info in entries:
        if info.flag_bits & 1 or info.compress_type not in (_STORED, _DEFLATED):
            raise InputError(f"{archive}: {info.filename} is encrypted or packed in an unusual way; unpack the archive")
        # Info-ZIP stores UTF-8 on Linux without a flag, and `zipfile` takes it for cp437
        if not info.flag_bits & _UTF8 and not info.filename.isascii():
            with suppress(UnicodeError):
                info.filename = info.filename.encode("cp437").decode()
    return [
        ArchiveMember(archive, i.filename, i.compress_type, i.header_offset, i.compress_size, i.file_size, i.CRC)
        for i in entries
    ]


def _clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def read_file(file: File, what: str = "source", limit: int = IMAGE_BYTES) -> bytes:
    """Read a file; InputError that names it `what` if it cannot be read or exceeds `limit` bytes."""
    return read_bytes(file, what, limit) if isinstance(file, Path) else file.read_bytes(limit, what)


def fingerprint(file: File) -> list[int]:
    """Return numbers that change with the content: its size, times and checksum."""
    if isinstance(file, Path):
        status = file.stat()
        return [status.st_size, status.st_mtime_ns]
    return [file.size, file.crc, file.archive.stat().st_mtime_ns]


def decoded(file: File, read: Callable[[Path, bytes | None], T]) -> T:
    """Return what a reader of :mod:`seamseg.maps.images` makes of a file."""
    return read(file, None) if isinstance(file, Path) else read(Path(str(file)), file.read_bytes())


def size_of(file: File) -> tuple[int, int]:
    """Return `(height, width)` of an image, see :func:`seamseg.maps.images.image_size`."""
    return decoded(file, image_size)


def read_map(file: File) -> np.ndarray:
    """Read an integer image as `H x W` int32, see :func:`seamseg.maps.images.open_mask`."""
    return decoded(file, open_mask)
