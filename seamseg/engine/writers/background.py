"""Writing behind the network's back, in a few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any

from seamseg.errors import SeamsegError


class Background:
    """Runs jobs in a few threads, so that the network need not wait for files, but never far ahead of them.

    Parameters
    ----------
    threads : jobs at a time
    waiting : further jobs that may wait; :meth:`submit` blocks beyond, which bounds the memory
    """

    def __init__(self, threads: int = 2, waiting: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="seamseg-writer")
        self._slots = BoundedSemaphore(threads + waiting)
        self._error: BaseException | None = None

    def submit(self, job: Callable[..., Any], *args: Any) -> None:
        """Run `job(*args)` soon; raises the error of an earlier job that failed."""
        self._raise()
        self._slots.acquire()
        self._pool.submit(job, *args).add_done_callback(self._done)

    def finish(self) -> None:
        """Wait for all jobs; raises the error of the first that failed."""
        self._pool.shutdown(wait=True)
        self._raise()

    def abandon(self) -> None:
        """Drop the jobs that have not begun and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _done(self, future: Future) -> None:
        self._slots.release()
        if not future.cancelled() and self._error is None:
            self._error = future.exception()

    def _raise(self) -> None:
        if self._error is None:
            return
        if isinstance(self._error, OSError):
            name = self._error.filename or "output"
            raise SeamsegError(f"{name}: cannot be written: {self._error.strerror or self._error}") from self._error
        raise self._error
