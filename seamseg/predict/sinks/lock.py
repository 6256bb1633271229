"""One run at a time in a folder of outputs."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import TracebackType

from seamseg.utils.errors import SeamsegError
from seamseg.utils.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_BUSY = (errno.EAGAIN, errno.EACCES)
_held: set[int] = set()
"""Open files that are locked by this process"""


def hold(file: int) -> None:
    """Have a child that outlives this process for a moment, such as a decoder, not keep the lock of an open file."""
    _held.add(file)


def let_go(file: int) -> None:
    """Close a file that :func:`hold` has got."""
    _held.discard(file)
    os.close(file)


class FolderLock:
    """A lock on the folder itself, which no file is left of and which ends with the process, however it ends.

    The main process is alone while it looks at what earlier runs have left; then all processes of the run are in it
    together, and another run's main process cannot be alone. Where the file system has no locks (some NFS), the run
    goes on and says so.

    Parameters
    ----------
    folder : is made; None locks nothing
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._file: int | None = None

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            let_go(self._file)
            self._file = None

    def alone(self) -> None:
        """Take it for this process only.

        Raises
        ------
        SeamsegError
            if another run is at work in the folder, or the folder cannot be made
        """
        self._take(True)

    def together(self) -> None:
        """Take it with the other processes of this run; SeamsegError as :meth:`alone`."""
        self._take(False)

    def _take(self, alone: bool) -> None:
        if self.folder is None or fcntl is None:
            return
        try:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.folder, os.O_RDONLY)
                hold(self._file)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        try:
            fcntl.flock(self._file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                raise SeamsegError(
                    f"{self.folder}: another `seamseg predict` is at work in this folder; wait for its end, or choose "
                    "another folder (more processes of one run: torchrun)"
                ) from error
            if alone:
                reason = error.strerror or error
                print(f"{self.folder}: cannot be locked ({reason}); start no second run into it", file=sys.stderr)


def _forget() -> None:
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
