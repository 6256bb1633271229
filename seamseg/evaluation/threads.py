"""Work spread over threads with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


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
