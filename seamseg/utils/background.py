"""Writing behind the network's back, in a few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Any

from seamseg.utils.files import cannot_write

WRITE_BEHIND_BYTES = 512 << 20


class Background:
    """Runs jobs in a few threads, so that the network need not wait for files, but never far ahead of them.

    Parameters
    ----------
    threads : jobs at a time
    waiting : further jobs that may wait; :meth:`submit` blocks beyond, which bounds the memory
    most_bytes : of all jobs that are not done; one that is larger goes alone
    """

    def __init__(self, threads: int = 2, waiting: int = 4, most_bytes: int = WRITE_BEHIND_BYTES) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="seamseg-writer")
        self._most_jobs, self._most_bytes = threads + waiting, most_bytes
        self._jobs = self._bytes = 0
        self._change = Condition()
        self._error: BaseException | None = None

    def submit(self, job: Callable[..., Any], *args: Any, size: int = 0) -> None:
        """Run `job(*args)`, which needs `size` bytes, soon; raises the error of an earlier job that failed."""
        self.check()
        with self._change:
            self._change.wait_for(lambda: self._has_room(size))
            self._jobs += 1
            self._bytes += size
        self._pool.submit(job, *args).add_done_callback(lambda future: self._done(future, size))

    def _has_room(self, size: int) -> bool:
        return self._jobs == 0 or (self._jobs < self._most_jobs and self._bytes + size <= self._most_bytes)

    def finish(self) -> None:
        """Wait for all jobs; raises the error of the first that failed."""
        self._pool.shutdown(wait=True)
        self.check()

    def abandon(self) -> None:
        """Drop the jobs that have not begun and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _done(self, future: Future, size: int) -> None:
        if not future.cancelled() and self._error is None:
            self._error = future.exception()
        with self._change:
            self._jobs -= 1
            self._bytes -= size
            self._change.notify_all()

    def check(self) -> None:
        """Raises the error of the first job that failed, if one has."""
        if self._error is None:
            return
        if isinstance(self._error, OSError):
            raise cannot_write(self._error.filename or "output", self._error) from self._error
        raise self._error
