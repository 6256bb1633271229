"""Locks of folders and files that end with their process, also by SIGKILL.

The `filelock` package is not used: it has no shared `flock`, by which all processes of a run hold a folder together;
after SIGKILL its lock file stays among the outputs; and without `flock` it falls back to a lock that a killed process
keeps.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seamseg.utils.errors import InputError
from seamseg.utils.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BUSY = (errno.EAGAIN, errno.EACCES)
"""Errors of :func:`flock` if another process has a lock that conflicts."""
_HOLDER_BYTES = 200
_held: set[int] = set()
"""Open locked files of this process"""


def has_locks() -> bool:
    """Return whether the system has locks (Windows has none)."""
    return fcntl is not None


def open_locked(path: Path, flags: int) -> int:
    """Open a file whose lock must end with this process; its forked children close it at once.

    A decoder may outlive its parent for a moment and would otherwise keep the lock.
    """
    file = os.open(path, flags)
    _held.add(file)
    return file


def close_locked(file: int) -> None:
    """Close a file from :func:`open_locked`, which releases its lock."""
    _held.discard(file)
    os.close(file)


def flock(file: int, exclusive: bool = True) -> bool:
    """Lock an open file without waiting; return False where the system has no locks (Windows).

    Raises
    ------
    OSError
        if another process has a lock that conflicts, or the file system has no locks
    """
    if fcntl is None:
        return False
    fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    return True


def warn_unlocked(folder: Path, error: OSError) -> None:
    """Warn that a file system has no locks."""
    print(f"{folder}: cannot be locked ({error.strerror or error}); do not start a second run", file=sys.stderr)


@contextmanager
def lock_file(path: Path, advice: str) -> Iterator[None]:
    """Hold a lock file, which names this process, for a `with` block; it is removed at the end.

    A file that a killed process has left is not locked. On file systems without locks a warning is printed.

    Parameters
    ----------
    path : path of the file, in the existing folder that it protects
    advice : what to do if another process holds it

    Raises
    ------
    InputError
        if another process holds it
    SeamsegError
        if it cannot be written
    """
    if fcntl is None:
        yield
        return
    file = _acquire(path, advice)
    try:
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode()[:_HOLDER_BYTES], 0)
        yield
    finally:
        # while it is locked
        with suppress(OSError):
            path.unlink()
        close_locked(file)


def _acquire(path: Path, advice: str) -> int:
    while True:
        try:
            # open for writing: some NFS locks no other files
            file = open_locked(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            flock(file)
        except OSError as error:
            if error.errno in BUSY:
                holder = " ".join(os.pread(file, _HOLDER_BYTES, 0).decode(errors="replace").split())
                close_locked(file)
                raise InputError(f"{path.parent}: in use by {holder or 'another process'}; {advice}") from None
            warn_unlocked(path.parent, error)
            return file
        # the holder may have removed it in between
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        close_locked(file)


def _close_in_child() -> None:
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
