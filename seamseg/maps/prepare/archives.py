"""Files of a source data set, on disk or in .zip and .tar archives, which are read in place."""

from __future__ import annotations

import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from seamseg.maps.images import image_size, open_mask
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden, nearest_path, read_bytes
from seamseg.utils.limits import (
    ANNOTATION_BYTES,
    IMAGE_BYTES,
    PATH_CHARACTERS,
    LimitedTarInfo,
    check_member,
    inflate,
    packed_size,
)

T = TypeVar("T")
_STORED, _DEFLATED, _TAR = 0, 8, -1
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_PATH_FOLDERS = 64
_MOST_LINKS = 40
"""Links that lead to a file of a tar file; the limit of Linux."""
_UTF8 = 1 << 11
"""Flag of a zip file: the name is UTF-8."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True)
class ArchiveMember:
    """A file in an archive, with its offset, so that worker processes need not list the archive again.

    `method` is 0 or 8 as in zip files, -1 in a tar file; `offset` that of the header (zip) or of the content (tar).
    `crc` is 0 in a tar file. `conflict` is the file of another archive with the same path but other content, or empty.
    """

    archive: Path
    path: str
    method: int
    offset: int
    packed: int
    size: int
    crc: int
    conflict: str = ""

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

    def check_conflict(self) -> None:
        """Raise InputError if another archive has a different file with this path."""
        if self.conflict:
            raise InputError(f"{self}: {self.conflict} has the same name and other content; move one archive away")

    def same_content(self, other: ArchiveMember) -> bool:
        """Return whether two files are equal; InputError if an archive is damaged."""
        if self.size != other.size:
            return False
        if _TAR not in (self.method, other.method):
            return self.crc == other.crc
        return self._content() == other._content()

    def read_bytes(self, limit: int = IMAGE_BYTES, what: str = "image or map") -> bytes:
        """Return the content of at most `limit` bytes, those of a `what`; InputError also for damage and conflicts."""
        self.check_conflict()
        return self._content(limit, what)

    def _content(self, limit: int = ANNOTATION_BYTES, what: str = "file") -> bytes:
        check_member(str(self), self.packed, self.size, limit, what)
        try:
            with open(self.archive, "rb") as file:
                file.seek(self.offset)
                if self.method != _TAR:
                    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                    if signature != b"PK\x03\x04":
                        raise InputError(f"{self}: the archive is damaged; download it again")
                    file.seek(name + extra, 1)
                data = file.read(self.packed)
            if self.method == _DEFLATED:
                data = inflate(data, self.size)
        except (OSError, struct.error, zlib.error) as error:
            raise InputError(f"{self}: cannot be unpacked: {error}; download the archive again") from None
        if len(data) != self.size or (self.method != _TAR and zlib.crc32(data) != self.crc):
            raise InputError(f"{self}: the archive is damaged (wrong checksum); download it again")
        return data


File = Path | ArchiveMember


class SourceTree:
    """The folders of a source data set, including the content of the archives in them.

    `root` is a folder or an archive. The .zip and .tar files in `mounts`, folders below `root`, are read as if they had
    been unpacked there; a file on disk takes precedence over one in an archive. Two archives may have the same file;
    different files with one path cannot be read.
    """

    def __init__(self, root: str | Path, mounts: tuple[str, ...] = ("",)) -> None:
        self.root = Path(root)
        if not self.root.exists():
            raise InputError(f"{self.root}: no such folder or archive{nearest_path(self.root)}")
        self._packed: dict[str, dict[str, ArchiveMember]] = {}
        self._refused: list[str] = []
        if self.root.is_file():
            self._add_archive(self.root, "")
        for mount in mounts:
            folder = self.root / mount
            for archive in sorted(folder.iterdir()) if folder.is_dir() else ():
                if archive.is_file() and not is_hidden(archive.name):
                    self._add_archive(archive, mount)

    @property
    def hint(self) -> str:
        """Suffix for errors about missing files: an archive that cannot be read in place."""
        return f"; {self._refused[0]} cannot be read in place, unpack it" if self._refused else ""

    def files(self, folder: str) -> dict[str, File]:
        """Return the files in a folder by name, sorted; empty if there is no such folder."""
        found: dict[str, File] = dict(self._packed.get(_clean(folder), {}))
        path = self.root / folder
        if path.is_dir():
            found.update((entry.name, entry) for entry in path.iterdir() if entry.is_file())
        return {name: found[name] for name in sorted(found) if not name.startswith(".")}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        found = set(self._packed_folders.get(_clean(folder), ()))
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

    @cached_property
    def _packed_folders(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for folder in self._packed:
            while folder:
                parent, _, name = folder.rpartition("/")
                found.setdefault(parent, set()).add(name)
                folder = parent
        return found

    def _add_archive(self, archive: Path, mount: str) -> None:
        name = archive.name.lower()
        if name.endswith(".zip"):
            members = _zip_members(archive)
        elif name.endswith(".tar"):
            members = _tar_members(archive)
        else:
            if name.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")):
                self._refused.append(str(archive))
            return
        for member in members:
            _check_path(member.path, archive)
            folder, _, name = _clean(f"{mount}/{member.path}").rpartition("/")
            of_folder = self._packed.setdefault(folder, {})
            before = of_folder.get(name)
            # within one archive the later one wins, as it does when the archive is unpacked
            if before is not None and (
                before.conflict or (before.archive != archive and not before.same_content(member))
            ):
                member = replace(member, conflict=before.conflict or str(before))
            of_folder[name] = member
            if name.lower().endswith((".zip", ".tar")):
                self._refused.append(str(member))


def _check_path(path: str, archive: Path) -> None:
    """Raise InputError for the path of a member that would take much memory as folders."""
    if len(path) > PATH_CHARACTERS or path.count("/") > _PATH_FOLDERS:
        raise InputError(
            f"{archive}: a path of {len(path)} characters in {path.count('/')} folders ({path[:40]}...); the limits "
            f"are {PATH_CHARACTERS} and {_PATH_FOLDERS}"
        )


def _zip_members(archive: Path) -> list[ArchiveMember]:
    try:
        with open(archive, "rb") as raw, zipfile.ZipFile(raw) as file:
            entries = [info for info in file.infolist() if info.filename and not info.is_dir()]
            end = 0
            for info in sorted(entries, key=lambda info: info.header_offset):
                packed = packed_size(file, info)
                if info.header_offset < end:
                    raise zipfile.BadZipFile(f"{info.filename} overlaps another file")
                end = info.header_offset + packed
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{archive}: not a zip file, or a truncated one ({error}); download it again, or move it away"
        ) from None
    for info in entries:
        if info.flag_bits & 1 or info.compress_type not in (_STORED, _DEFLATED):
            raise InputError(f"{archive}: {info.filename} is encrypted or packed in an unusual way; unpack the archive")
    return [
        ArchiveMember(archive, _path_in_zip(i), i.compress_type, i.header_offset, i.compress_size, i.file_size, i.CRC)
        for i in entries
    ]


def _path_in_zip(info: zipfile.ZipInfo) -> str:
    """Return the path of a file. Info-ZIP stores UTF-8 on Linux without a flag, and `zipfile` takes it for cp437."""
    if not info.flag_bits & _UTF8 and not info.filename.isascii():
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode()
    return info.filename


def _tar_members(archive: Path) -> list[ArchiveMember]:
    try:
        with open(archive, "rb") as raw:
            head = raw.read(6)
        kind = next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), "")
        if kind:
            raise InputError(f"{archive}: is compressed by {kind} and cannot be read in place; unpack it")
        with tarfile.open(archive, "r:", tarinfo=LimitedTarInfo) as file:
            found = {_clean(info.name): info for info in file}
            named = {path: _target(found, path) for path in found}
            entries = [(path, info) for path, info in named.items() if info is not None and info.isreg()]
    except (OSError, tarfile.TarError, ValueError) as error:
        raise InputError(
            f"{archive}: not a tar file, or a truncated one ({error}); download it again, or move it away"
        ) from None
    return [ArchiveMember(archive, path, _TAR, i.offset_data, i.size, i.size, 0) for path, i in entries]


def _target(found: dict[str, tarfile.TarInfo], path: str) -> tarfile.TarInfo | None:
    """Return the entry of a path, following hard and symbolic links; None if it is not in the archive."""
    for _ in range(_MOST_LINKS):
        info = found.get(path)
        if info is None or not (info.islnk() or info.issym()):
            return info
        name = info.linkname if info.islnk() else posixpath.join(posixpath.dirname(path), info.linkname)
        path = _clean(posixpath.normpath(name))
    return None


def _clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def read_file(file: File, what: str = "source", limit: int = IMAGE_BYTES) -> bytes:
    """Read a file; InputError that names it `what` if it cannot be read or exceeds `limit` bytes."""
    return read_bytes(file, what, limit) if isinstance(file, Path) else file.read_bytes(limit, what)


def fingerprint(file: File) -> list[int]:
    """Return numbers that change with the content: size and times, or size and checksum."""
    if isinstance(file, Path):
        status = file.stat()
        # the time of modification may be set; linking a file changes the other, but then its name leads to one content
        return [status.st_size, status.st_mtime_ns, status.st_ctime_ns if status.st_nlink == 1 else status.st_ino]
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
