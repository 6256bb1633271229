"""A folder of this process in which outputs are made before they are brought to their place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from seamseg.predict.sinks.lock import hold, let_go
from seamseg.predict.writers.base import Writer
from seamseg.utils.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".seamseg-predict-"
_LOCK = "lock"

MakeWriters = Callable[[Path], Sequence[Writer]]
"""The formats of a run, for a folder that they write to"""


@dataclass(frozen=True)
class Room:
    """A folder for the outputs of one photo at a time, and what writes them there."""

    folder: Path
    writers: Sequence[Writer]

    def files(self) -> list[str]:
        """What has been written, as names below the folder."""
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())


class Staging:
    """A temporary folder.

    Parameters
    ----------
    parent : where it lies, by default where temporary files go (`TMPDIR`)
    make_writers : of a room
    sweep : remove the folders of killed processes that lie beside it. Where machines share them only while nobody else
        is at work: some file systems have locks that other machines do not see

    Raises
    ------
    SeamsegError
        if it cannot be made
    """

    def __init__(self, parent: Path | None, make_writers: MakeWriters, sweep: bool = True) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        self._make_writers = make_writers
        self._free: SimpleQueue[Room] = SimpleQueue()
        try:
            where.mkdir(parents=True, exist_ok=True)
            if sweep:
                _sweep(where)
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))
            self._lock = _locked(self.folder / _LOCK)
        except OSError as error:
            raise cannot_write(where, error) from error
        hold(self._lock)

    @contextmanager
    def room(self) -> Iterator[Room]:
        """A room that nobody else is in, empty; it is cleared at the end."""
        try:
            room = self._free.get_nowait()
        except Empty:
            folder = Path(tempfile.mkdtemp(prefix="room-", dir=self.folder))
            room = Room(folder, self._make_writers(folder))
        try:
            yield room
        finally:
            for path in room.folder.iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            self._free.put(room)

    def close(self) -> None:
        """Remove it."""
        let_go(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)


def _locked(path: Path) -> int:
    """A new file with a lock, which it has before its name: one without a lock is that of a dead process to others."""
    if fcntl is None:
        return os.open(path, os.O_CREAT | os.O_RDWR)
    unborn = path.with_suffix(".new")
    file = os.open(unborn, os.O_CREAT | os.O_RDWR)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(unborn, path)
    return file


def _sweep(where: Path) -> None:
    """Remove the folders whose process has ended: its lock is gone. Without locks they stay."""
    for folder in where.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            file = os.open(folder / _LOCK, os.O_RDWR)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)
