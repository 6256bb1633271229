"""Storage of finished files: a local folder, or a URL through fsspec. Files appear complete or not at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import replacing
from seamseg.utils.urls import describe_error, file_system

T = TypeVar("T")

ATOMIC = frozenset(["memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"])
"""Schemes whose files appear only when complete; elsewhere files are written under a temporary name and renamed."""

RETRY_SECONDS = (1.0, 4.0, 15.0)
"""Delay before each further attempt."""

_PERMANENT = (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError, NotImplementedError)


class Store(Protocol):
    """Files by their names relative to a root, with `/` between folders. Safe to use from several threads."""

    def put(self, path: Path, name: str) -> None:
        """Move or upload a local file; it is durable when this returns, and the local file may be gone."""

    def put_bytes(self, data: bytes, name: str) -> None:
        """Write a small file; it is durable when this returns."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a local path."""

    def sizes(self, deep: bool) -> dict[str, int]:
        """Return the size of each file in bytes, by name; with `deep` those in sub-folders too."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def address(self, name: str) -> str:
        """Return the path or URL of a file."""


class FolderStore:
    """A local folder; SeamsegError if an operation fails. Files to :meth:`put` must be on the same file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, path: Path, name: str) -> None:
        """See `Store`."""
        target = self.folder / name
        with self._errors(name, "written"):
            _sync(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
            _sync(target.parent)

    def put_bytes(self, data: bytes, name: str) -> None:
        """See `Store`."""
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(data)
            _sync(temporary)

    def read(self, name: str) -> bytes:
        """See `Store`."""
        with self._errors(name, "read"):
            return (self.folder / name).read_bytes()

    def fetch(self, name: str, path: Path) -> None:
        """See `Store`."""
        with self._errors(name, "read"):
            shutil.copyfile(self.folder / name, path)

    def sizes(self, deep: bool) -> dict[str, int]:
        """See `Store`."""
        paths = self.folder.rglob("*") if deep else self.folder.glob("*")
        with self._errors("", "read"):
            return {p.relative_to(self.folder).as_posix(): p.stat().st_size for p in paths if p.is_file()}

    def remove(self, name: str) -> None:
        """See `Store`."""
        with self._errors(name, "removed"):
            (self.folder / name).unlink(missing_ok=True)

    def address(self, name: str) -> str:
        """See `Store`."""
        return str(self.folder / name)

    @contextmanager
    def _errors(self, name: str, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _failed(self.address(name), action, error) from error


class UrlStore:
    """A folder at a URL. Failed operations are retried, then raise SeamsegError.

    Raises
    ------
    InputError
        if fsspec or its driver for the scheme is not installed
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
        """See `Store`."""
        self._upload(name, lambda target: self._system.put_file(str(path), target))

    def put_bytes(self, data: bytes, name: str) -> None:
        """See `Store`."""
        self._upload(name, lambda target: self._system.pipe_file(target, data))

    def read(self, name: str) -> bytes:
        """See `Store`."""
        return bytes(self._retry(name, "read", lambda: self._system.cat_file(self._key(name))))

    def fetch(self, name: str, path: Path) -> None:
        """See `Store`."""
        self._retry(name, "read", lambda: self._system.get_file(self._key(name), str(path)))

    def sizes(self, deep: bool) -> dict[str, int]:
        """See `Store`."""

        def list_files() -> dict[str, int]:
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._root, maxdepth=None if deep else 1, detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._root) + 1
            return {key[start:]: int(info.get("size") or 0) for key, info in found.items()}

        return self._retry("", "listed", list_files)

    def remove(self, name: str) -> None:
        """See `Store`."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._system.rm_file(self._key(name))

        self._retry(name, "removed", remove)

    def address(self, name: str) -> str:
        """See `Store`."""
        return f"{self.url}/{name}" if name else self.url

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _upload(self, name: str, send: Callable[[str], object]) -> None:
        def attempt() -> None:
            target = self._key(name)
            if self._atomic:
                send(target)
                return
            folder, _, file = target.rpartition("/")
            self._system.makedirs(folder, exist_ok=True)
            # unique: no two processes write the same file
            temporary = f"{folder}/.{file}.partial"
            send(temporary)
            self._system.mv(temporary, target)

        self._retry(name, "written", attempt)

    def _retry(self, name: str, action: str, job: Callable[[], T]) -> T:
        for delay in (*RETRY_SECONDS, None):
            try:
                return job()
            except Exception as error:  # each driver has its own errors
                if delay is None or isinstance(error, _PERMANENT):
                    raise _failed(self.address(name), action, error) from error
                time.sleep(delay)
        raise AssertionError


def _failed(address: str, action: str, error: Exception) -> SeamsegError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else describe_error(error)
    return SeamsegError(f"{address}: cannot be {action}: {reason}; re-run the same command to resume")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
