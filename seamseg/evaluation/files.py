"""Files that appear whole or not at all, and work spread over threads with bounded memory."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from seamseg.errors import SeamsegError

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    Raises
    ------
    SeamsegError
        if the file cannot be written
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise SeamsegError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, content: Any, indent: int | None = None) -> None:
    """Write strict JSON (no NaN), whole or not at all; missing folders are made."""
    with replacing(Path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def threaded_map(function: Callable[[_In], _Out], items: Iterable[_In], workers: int) -> Iterator[_Out]:
    """`map` on `workers` threads: results in the order of `items`, few of them waiting at any time.

    Decoding and encoding of images leaves Python's lock, so threads suffice. The first error, in the order of `items`,
    ends the iteration; what has not started by then is dropped.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[_Out]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
