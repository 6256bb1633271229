"""Locks of output folders."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from seamseg.predict.part import Part
from seamseg.utils.errors import SeamsegError
from seamseg.utils.files import cannot_write
from seamseg.utils.locks import BUSY, close_locked, flock, has_locks, open_locked, warn_unlocked

_PART_LOCK = "predictions.{}.lock"
_PART_SECONDS = 30.0
"""Time for which a part waits while others are starting."""


class FolderLock:
    """A lock on a folder itself: it leaves no file, and ends with the process, also by SIGKILL.

    The main process holds it exclusively while it reads the results of earlier runs; then all processes of the run
    share it, so the main process of another run cannot acquire it. On file systems without locks (some NFS) a warning
    is printed and the run continues.

    The run of a part locks the folder only for the moment in which it locks a file of its own there, in the same way.
    So it cannot start beside a run without a part, nor such a run beside it, which also removes these files.

    Parameters
    ----------
    folder : folder to lock, which is made; None locks nothing
    part : the images of this run; None for all
    """

    def __init__(self, folder: Path | None, part: Part | None = None) -> None:
        self.folder = folder
        self.part = part
        self._file: int | None = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            close_locked(self._file)
            self._file = None

    def acquire_exclusive(self) -> None:
        """Lock the folder, or the part, for this process only.

        Raises
        ------
        SeamsegError
            if another run uses it, or the folder cannot be made
        """
        if self.folder is None or not has_locks():
            return
        if self.part is None:
            self._acquire(True)
            self._remove_parts(self.folder)
        else:
            with _alone(self.folder):
                self._acquire(True)

    def acquire_shared(self) -> None:
        """Lock the folder together with the other processes of this run; SeamsegError as `acquire_exclusive`."""
        self._acquire(False)

    def _acquire(self, exclusive: bool) -> None:
        if self.folder is None or not has_locks():
            return
        try:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                if self.part is None:
                    self._file = open_locked(self.folder, os.O_RDONLY)
                else:
                    # open for writing: some NFS locks no other files
                    self._file = open_locked(self.folder / _PART_LOCK.format(self.part.word), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        try:
            flock(self._file, exclusive)
        except OSError as error:
            if error.errno in BUSY:
                raise _busy(self.folder, self.part) from error
            if exclusive:
                warn_unlocked(self.folder, error)

    def _remove_parts(self, folder: Path) -> None:
        """Remove the lock files of parts; SeamsegError if one is locked."""
        for path in folder.glob(_PART_LOCK.format("part*")):
            try:
                file = os.open(path, os.O_RDWR)
            except OSError as error:
                raise cannot_write(path, error) from error
            try:
                flock(file)
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno in BUSY:
                    raise SeamsegError(
                        f"{folder}: another `seamseg predict` is still writing a part ({path.name}); wait until it ends"
                    ) from error
            finally:
                os.close(file)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder for a moment; SeamsegError if a run without a part holds it for long."""
    end = time.monotonic() + _PART_SECONDS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_locked(folder, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        while True:
            try:
                flock(file)
                break
            except OSError as error:
                if error.errno not in BUSY:
                    warn_unlocked(folder, error)
                    break
                if time.monotonic() > end:
                    raise _busy(folder, None) from error
            time.sleep(random.uniform(0.02, 0.2))
        yield
    finally:
        close_locked(file)


def _busy(folder: Path, part: Part | None) -> SeamsegError:
    if part is not None:
        return SeamsegError(f"{folder}: another `seamseg predict` is writing part {part}; wait until it ends")
    return SeamsegError(
        f"{folder}: another `seamseg predict` is writing to this folder; wait until it ends, or choose another folder "
        "(for more processes in one run use torchrun)"
    )
