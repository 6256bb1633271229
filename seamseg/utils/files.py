"""Atomic writes (a temporary file in the same folder, then a rename), and reads with a size limit or in blocks."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from seamseg.utils.errors import InputError, SeamsegError, near_names
from seamseg.utils.limits import TEXT_BYTES, parse_json, read_limited

PARTIAL = ".partial"
"""Suffix of files being written; one left by a killed process may be deleted."""
_SYSTEM_FOLDERS = ("__MACOSX", "@eaDir")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def cannot_write(path: object, error: OSError) -> SeamsegError:
    """Return the error for a file or folder that cannot be written, with the message of the system."""
    return SeamsegError(f"{path}: cannot be written: {error.strerror or error}")


def refuse_url(text: str | Path, where: str = "") -> None:
    """Raise InputError, which begins with `where`, for a URL: no text from a list or a call reaches a network."""
    if _URL.match(str(text)):
        raise InputError(
            f"{where}{text}: a URL, where a local path is needed; `python -m seamseg.contrib.ray` predicts from "
            "and to object stores"
        )


@contextmanager
def lock_file(path: Path, advice: str) -> Iterator[None]:
    """Hold a lock file for a `with` block, in a folder that is made if it is missing; the file is removed at the end.

    The lock ends with the process, also by SIGKILL. InputError, which ends with `advice`, if another process holds it.
    """
    from filelock import FileLock, Timeout

    make_folder(path.parent)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{path.parent}: in use by another process; {advice}") from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # while it is locked
            path.unlink()
        lock.release()


def refuse_existing(path: Path, force: bool) -> None:
    """Raise InputError if a file exists that a command would overwrite, unless `force`."""
    if path.exists() and not force:
        raise InputError(f"{path}: exists; use `force=True` to overwrite it")


def make_folder(path: Path) -> None:
    """Make a folder and those above it; SeamsegError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SeamsegError(f"{path}: cannot make the folder: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, which replaces `path` if the block ends without an error.

    A missing folder is created. SeamsegError if the file cannot be written.
    """
    if not (name := path.name):
        raise InputError(f"{path}: is a folder, not the name of a file")
    # the name may be as long as the file system allows
    temporary = path.with_name(f".{name[-40:]}.{os.getpid()}.{threading.get_ident()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: a reader finds the old content or the new, also after a crash."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | Path, content: Any, indent: int | None = None) -> None:
    """Write strict JSON (no NaN) atomically."""
    write_atomically(Path(path), (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode())


def nearest_path(path: str | Path) -> str:
    """Return the end of a message on a missing path, "; did you mean runs/demo?"; empty if no name there is similar."""
    path = missing = Path(path)
    while not os.path.lexists(missing.parent):
        missing = missing.parent
    with suppress(OSError):
        match = near_names(missing.name, os.listdir(missing.parent))
        if match and match[0] != missing.name:
            return f"; did you mean {missing.parent / match[0] / path.relative_to(missing)}?"
    return ""


def read_bytes(path: Path, what: str, limit: int = TEXT_BYTES) -> bytes:
    """Read `path`; raise InputError, which names the file `what`, if it is unreadable or exceeds `limit` bytes."""
    try:
        with open(path, "rb") as file:
            return read_limited(file, limit, str(path), what, expected=os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file ({what}){nearest_path(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read the {what}: {error.strerror or error}") from error


def hash_content(path: Path, checksum: Any) -> None:
    """Add the content of a file to a checksum of hashlib; InputError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                checksum.update(block)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{nearest_path(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def decode_text(data: bytes, name: object, what: str) -> str:
    """Decode a file of UTF-8, or of UTF-16 as PowerShell writes it; InputError, naming the file, for others."""
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{name}: cannot be read as a {what}: line {line} is not {encoding.upper()} text; save it as UTF-8"
        ) from None


def read_text(path: Path, what: str, limit: int = TEXT_BYTES) -> str:
    """Read a text; errors as of :func:`read_bytes` and :func:`decode_text`."""
    return decode_text(read_bytes(path, what, limit), path, what)


def read_json(path: Path, what: str, limit: int = TEXT_BYTES) -> Any:
    """Read JSON, see :func:`seamseg.utils.limits.parse_json`; InputError if it is none."""
    try:
        return parse_json(read_bytes(path, what, limit))
    except ValueError as error:
        raise InputError(f"{path}: not JSON, or a truncated one ({error}); copy it again") from None


def listed_names(data: bytes, name: object, what: str) -> list[str]:
    """Return the names of a list, one a line, without the quotes around them; errors as of :func:`decode_text`."""
    lines = (line.strip() for line in decode_text(data, name, what).splitlines())
    names = (line[1:-1] if len(line) > 1 and line[0] == line[-1] and line[0] in "'\"" else line for line in lines)
    return [name for name in names if name]


def is_hidden(name: str) -> bool:
    """Return whether a program made a file or folder for itself: `.ipynb_checkpoints`, `._a.jpg` of macOS."""
    return name.startswith(".") or name in _SYSTEM_FOLDERS


def join_inside(folder: Path, name: str) -> Path:
    """Return `folder / name` of a name from data, to read it; links in the folder are followed.

    InputError if it points outside of the folder on any operating system: an absolute path, or one with `..`.
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or re.match("[A-Za-z]:", name):
        raise InputError(f"{folder}: {name!r} is not a path inside this folder")
    return folder / name
