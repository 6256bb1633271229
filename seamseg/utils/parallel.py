"""Run a function over many items in worker processes that do not outlive the work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from seamseg.utils.errors import SeamsegError

A = TypeVar("A")
B = TypeVar("B")


def available_cores() -> int:
    """The number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_map(function: Callable[[A], B], items: Sequence[A], workers: int | None = None) -> Iterator[B]:
    """Yield `function(item)` in the order of `items`.

    Parameters
    ----------
    function, items : picklable
    workers : processes; None takes one a processor; at most one works in this process

    Raises
    ------
    SeamsegError
        if a worker is killed; errors of `function` come as they are, and what has not begun is dropped
    """
    count = min(available_cores() if workers is None else workers, len(items))
    if count <= 1:
        yield from map(function, items)
        return
    # a forked worker starts at once and does not import the caller's main module again
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))
    try:
        yield from pool.map(function, items)
    except BrokenProcessPool:
        raise SeamsegError(
            f"one of {count} worker processes was killed, perhaps for want of memory; what is finished is kept: "
            "run again with fewer workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends the pool
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    # a killed parent cannot end its workers: they would wait for work for ever
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


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
