"""Temporary folders in which outputs are made before they are moved or uploaded to their target."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from seamseg.predict.writers.base import OutputFormat
from seamseg.utils.files import cannot_write
from seamseg.utils.locks import close_locked, flock, open_locked

_PREFIX = ".seamseg-predict-"
_LOCK = "lock"
_UNLOCKED_SECONDS = 60
"""Longer than a process takes to create the lock of its folder."""

MakeWriters = Callable[[Path], Sequence[OutputFormat[Any]]]
"""Creates the writers of a run for a folder"""


@dataclass(frozen=True)
class ScratchDir:
    """A folder for the outputs of one image at a time, and the writers that write there."""

    folder: Path
    writers: Sequence[OutputFormat[Any]]

    def files(self) -> list[str]:
        """Return the names of all files, relative to the folder."""
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())


class Staging:
    """A temporary folder of this process with a scratch dir for each thread.

    Parameters
    ----------
    parent : where it is made; None for the system's folder of temporary files (`TMPDIR`)
    make_writers : creates the formats for a scratch dir
    sweep : remove the folders that killed processes left beside it. If machines share `parent`, do so only while no
        other process works: some file systems have locks that other machines do not see

    Raises
    ------
    SeamsegError
        if it cannot be made
    """

    def __init__(self, parent: Path | None, make_writers: MakeWriters, sweep: bool = True) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        self._make_writers = make_writers
        self._free: SimpleQueue[ScratchDir] = SimpleQueue()
        try:
            where.mkdir(parents=True, exist_ok=True)
            if sweep:
                _sweep(where)
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))
            self._lock = _create_locked(self.folder / _LOCK)
        except OSError as error:
            raise cannot_write(where, error) from error

    @contextmanager
    def scratch_dir(self) -> Iterator[ScratchDir]:
        """Return an empty scratch dir that no other thread uses; it is cleared at the end."""
        try:
            scratch = self._free.get_nowait()
        except Empty:
            folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.folder))
            scratch = ScratchDir(folder, self._make_writers(folder))
        try:
            yield scratch
        finally:
            for path in scratch.folder.iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            self._free.put(scratch)

    def close(self) -> None:
        """Remove the folder."""
        close_locked(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)


def _create_locked(path: Path) -> int:
    """Create a locked file. It is locked before it gets its name: `_sweep` removes folders whose lock is free."""
    unnamed = path.with_suffix(".new")
    file = open_locked(unnamed, os.O_CREAT | os.O_RDWR)
    with suppress(OSError):
        flock(file)
    os.rename(unnamed, path)
    return file


def _sweep(where: Path) -> None:
    """Remove the folders of processes that have ended, whose locks are free. Without locks they stay."""
    for folder in where.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            try:
                file = os.open(folder / _LOCK, os.O_RDWR)
            except FileNotFoundError:
                # its process was killed just before it created the lock, or after it removed it
                if time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS:
                    folder.rmdir()
                continue
            try:
                if flock(file):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)
