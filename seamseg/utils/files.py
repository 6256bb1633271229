"""Files that appear whole or not at all: written beside their place under a temporary name, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.limits import TEXT_BYTES, read_limited

PARTIAL = ".partial"
"""Ending of files that are being written; one left by a killed process may be deleted."""
_LONGEST = 192
"""Bytes of a name that is part of the temporary one; file systems end at 255."""


def cannot_write(place: object, error: OSError) -> SeamsegError:
    """The error about a file or folder that cannot be written, with the words of the system."""
    return SeamsegError(f"{place}: cannot be written: {error.strerror or error}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path` that takes its place when the block ends without an error.

    The folder is made if it is missing.

    Raises
    ------
    SeamsegError
        if the file cannot be written (disk full, no permission)
    """
    name = path.name
    if len(os.fsencode(name)) > _LONGEST:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    temporary = path.with_name(f".{name}.{os.getpid()}.{threading.get_ident()}{PARTIAL}")
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
    """Write `data` to `path` so that no reader, and no restart after a kill, ever sees half of it."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | Path, content: Any, indent: int | None = None) -> None:
    """Write strict JSON (no NaN), whole or not at all."""
    write_atomically(Path(path), (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode())


def read_bytes(path: Path, what: str, limit: int = TEXT_BYTES) -> bytes:
    """The content of `path`; InputError that calls the file `what` if it cannot be read or exceeds `limit` bytes."""
    try:
        with open(path, "rb") as file:
            return read_limited(file, limit, str(path), what, expected=os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file ({what})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read the {what}: {error.strerror or error}") from error


def below(folder: Path, name: str) -> Path | None:
    """`folder / name` if that stays below the folder on any system, else None: the name may be anybody's."""
    parts = PurePosixPath(name.replace("\\", "/"))
    return None if parts.is_absolute() or ".." in parts.parts or re.match("[A-Za-z]:", name) else folder / name
