"""Where finished files are put: a folder, or a URL through fsspec. A name appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import replacing
from seamseg.utils.urls import describe_error, file_system

T = TypeVar("T")

ATOMIC = frozenset(["memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"])
"""Schemes whose files appear when they are complete; elsewhere they are renamed from a temporary name."""

PAUSES = (1.0, 4.0, 15.0)
"""Seconds before each further attempt"""

_HOPELESS = (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError, NotImplementedError)


class Store(Protocol):
    """Files by their name below a place, `/` between folders. Safe to use from several threads."""

    def put(self, path: Path, name: str) -> None:
        """Bring a local file there, which may be gone afterwards; durable when it returns."""

    def put_bytes(self, data: bytes, name: str) -> None:
        """The same for a small content."""

    def read(self, name: str) -> bytes:
        """The content of a file that is there."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file that is there to this machine."""

    def sizes(self, deep: bool) -> dict[str, int]:
        """All names with their bytes; those in sub-folders if `deep`."""

    def remove(self, name: str) -> None:
        """Take it away; one that is not there is fine."""

    def address(self, name: str) -> str:
        """For people"""


class FolderStore:
    """A folder of this machine. Files to :meth:`put` must lie on the same file system; SeamsegError if it fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, path: Path, name: str) -> None:
        """See `Store`"""
        target = self.folder / name
        try:
            _sync(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
            _sync(target.parent)
        except OSError as error:
            raise _failed(str(target), "written", error) from error

    def put_bytes(self, data: bytes, name: str) -> None:
        """See `Store`"""
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(data)
            _sync(temporary)

    def read(self, name: str) -> bytes:
        """See `Store`"""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise _failed(self.address(name), "read", error) from error

    def fetch(self, name: str, path: Path) -> None:
        """See `Store`"""
        try:
            shutil.copyfile(self.folder / name, path)
        except OSError as error:
            raise _failed(self.address(name), "read", error) from error

    def sizes(self, deep: bool) -> dict[str, int]:
        """See `Store`"""
        paths = self.folder.rglob("*") if deep else self.folder.glob("*")
        try:
            return {p.relative_to(self.folder).as_posix(): p.stat().st_size for p in paths if p.is_file()}
        except OSError as error:
            raise _failed(str(self.folder), "read", error) from error

    def remove(self, name: str) -> None:
        """See `Store`"""
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise _failed(self.address(name), "removed", error) from error

    def address(self, name: str) -> str:
        """See `Store`"""
        return str(self.folder / name)


class UrlStore:
    """A folder at a URL. What fails is tried again a few times, then SeamsegError.

    Raises
    ------
    InputError
        if fsspec, or what it needs for the scheme, is not installed
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme = self.url.partition("://")[0]
        if scheme in ("http", "https"):
            raise InputError(f"{url}: outputs cannot be written to a web server; choose a folder or a bucket")
        self._system: Any
        self._system, self._root = file_system(self.url)
        self._root = self._root.rstrip("/")
        self._atomic = scheme in ATOMIC

    def put(self, path: Path, name: str) -> None:
        """See `Store`"""
        self._bring(name, lambda target: self._system.put_file(str(path), target))

    def put_bytes(self, data: bytes, name: str) -> None:
        """See `Store`"""
        self._bring(name, lambda target: self._system.pipe_file(target, data))

    def read(self, name: str) -> bytes:
        """See `Store`"""
        return self._try(name, "read", lambda: self._system.cat_file(self._key(name)))

    def fetch(self, name: str, path: Path) -> None:
        """See `Store`"""
        self._try(name, "read", lambda: self._system.get_file(self._key(name), str(path)))

    def sizes(self, deep: bool) -> dict[str, int]:
        """See `Store`"""

        def find() -> dict[str, int]:
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._root, maxdepth=None if deep else 1, detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._root) + 1
            return {key[start:]: int(about.get("size") or 0) for key, about in found.items()}

        return self._try("", "listed", find)

    def remove(self, name: str) -> None:
        """See `Store`"""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._system.rm_file(self._key(name))

        self._try(name, "removed", remove)

    def address(self, name: str) -> str:
        """See `Store`"""
        return f"{self.url}/{name}" if name else self.url

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _bring(self, name: str, send: Callable[[str], object]) -> None:
        def attempt() -> None:
            target = self._key(name)
            if self._atomic:
                send(target)
                return
            folder, _, file = target.rpartition("/")
            self._system.makedirs(folder, exist_ok=True)
            # one for each name: no two processes bring the same file
            temporary = f"{folder}/.{file}.partial"
            send(temporary)
            self._system.mv(temporary, target)

        self._try(name, "written", attempt)

    def _try(self, name: str, what: str, job: Callable[[], T]) -> T:
        for pause in (*PAUSES, None):
            try:
                return job()
            except Exception as error:  # each library has errors of its own
                if pause is None or isinstance(error, _HOPELESS):
                    raise _failed(self.address(name), what, error) from error
                time.sleep(pause)
        raise AssertionError


def _failed(address: str, what: str, error: Exception) -> SeamsegError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else describe_error(error)
    return SeamsegError(f"{address}: cannot be {what}: {reason}; the same command goes on where it was")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
