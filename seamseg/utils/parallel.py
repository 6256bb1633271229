"""Run work in worker processes and in threads."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple, TypeVar

from seamseg.utils.distributed import process_count
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import cannot_write
from seamseg.utils.process import begin_worker_process, block_stop_signals

A = TypeVar("A")
B = TypeVar("B")

MAX_PENDING_BYTES = 512 << 20
MAX_WORKERS = 256
"""Maximum number of worker processes or threads on a machine with fewer cores."""


def available_cores() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CoreShares(NamedTuple):
    """How many processes or threads decode images beside a network, and how many threads write results."""

    decoders: int
    writers: int


def share_cores() -> CoreShares:
    """Return how the cores of a process are shared beside its network; in `predict`, `evaluate` and `serve` alike.

    On a CPU the network uses all cores, too: there the numbers only limit the memory of waiting images. On a GPU it
    needs one, and drawing and encoding an image takes about twice as long as decoding it. The processes of a launcher
    on this machine share the available cores.
    """
    here = os.environ.get("LOCAL_WORLD_SIZE", "1") if process_count() > 1 else "1"
    cores = max(available_cores() // max(int(here) if here.isdigit() else 1, 1), 1)
    return CoreShares(max(min(cores, 4), cores // 4), max(2, cores // 2))


def check_workers(workers: int, least: int = 0) -> int:
    """Return the number of workers; raise InputError if it is too low or too high."""
    if workers < least:
        raise InputError(f"`workers={workers}`: must be at least {least}")
    if workers > (most := max(MAX_WORKERS, available_cores())):
        raise InputError(f"`workers={workers}`: must be at most {most}")
    return workers


def parallel_map(function: Callable[[A], B], items: Sequence[A], workers: int | None = None) -> Iterator[B]:
    """Yield `function(item)` in the order of `items`, computed in worker processes, by default one per processor.

    Function and items are pickled. With 0 or 1 workers the work is done in this process. SeamsegError if they cannot be
    started, or one is killed; errors of `function` are raised unchanged. After an error or a dropped iteration, items
    not yet started are left out; only an error waits for the others.
    """
    count = min(available_cores() if workers is None else workers, len(items))
    if count <= 1:
        yield from map(function, items)
        return
    # a forked worker starts at once and does not import the caller's main module again
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    others = multiprocessing.active_children()
    try:
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker, initargs=(function,))
        with block_stop_signals():
            results = pool.map(_call, items)
    except (OSError, RuntimeError) as error:
        # RuntimeError: of a thread
        for worker in multiprocessing.active_children():
            if worker not in others:
                # it waits for work, and the exit of the interpreter for it
                worker.kill()
        raise SeamsegError(
            f"cannot start {count} worker processes: {getattr(error, 'strerror', None) or error} (limits of processes, "
            f"open files and /dev/shm); `workers=1` starts none"
        ) from error
    dropped = False
    try:
        yield from results
    except GeneratorExit:
        dropped = True
        raise
    except BrokenProcessPool:
        raise SeamsegError(
            f"one of {count} worker processes was killed, probably for lack of memory; finished work is kept: "
            "run again with fewer workers"
        ) from None
    finally:
        # the garbage collector may drop an iteration in any thread, even one that the pool's would wait for
        pool.shutdown(wait=not dropped, cancel_futures=True)


_function: Any = None
"""Of a worker process: what it calls, sent once and not with each item."""


def _call(item: Any) -> Any:
    return _function(item)


def _begin_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    begin_worker_process()


def threaded_map(
    function: Callable[[A], B],
    items: Iterable[A],
    workers: int,
    size_of: Callable[[B], int] | None = None,
    most_bytes: int = 0,
    begin: Callable[[], object] | None = None,
) -> Generator[B, None, None]:
    """Yield `function(item)` in the order of `items`, computed on `workers` threads with a bounded number of results.

    Decoding and encoding of images release the GIL, so threads suffice; with 0 or 1 the work is done in this one. The
    first error, in the order of `items`, ends the iteration after the items that have started; a dropped iteration does
    not wait for them. Others are left out.

    `size_of` returns the memory of a result, if it is not small: then the results that wait take at most `most_bytes`,
    and each thread may hold one more. Each thread calls `begin` first; this one does not.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[B]] = deque()

    def full() -> bool:
        if size_of is None:
            return len(waiting) > 4 * workers
        held = sum(size_of(future.result()) for future in waiting if future.done() and not future.exception())
        return len(waiting) > workers or held >= most_bytes

    pool, dropped = ThreadPoolExecutor(workers, initializer=begin), False
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            while waiting and full():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except GeneratorExit:
        dropped = True
        raise
    finally:
        # as in parallel_map
        pool.shutdown(wait=not dropped, cancel_futures=True)


class BackgroundWriter:
    """Run jobs in threads, such as writing, or a small network on a CPU, with a bounded queue.

    There are `threads` jobs at a time, by default the writers of :func:`share_cores`, and `waiting` further ones;
    :meth:`submit` waits for one to end while the queue is full. All unfinished jobs together take at most `most_bytes`;
    a larger one runs alone. Each thread calls `begin` first.
    """

    def __init__(
        self,
        threads: int | None = None,
        waiting: int = 4,
        most_bytes: int = MAX_PENDING_BYTES,
        begin: Callable[[], object] | None = None,
    ) -> None:
        threads = share_cores().writers if threads is None else threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="seamseg-writer", initializer=begin)
        self._most_jobs, self._most_bytes = threads + waiting, most_bytes
        self._jobs: dict[Future[Any], int] = {}

    def submit(self, job: Callable[..., Any], *args: Any, size: int = 0) -> None:
        """Queue `job(*args)`, which needs `size` bytes; raise the error of an earlier job that failed."""
        self._collect()
        while self._jobs and (len(self._jobs) >= self._most_jobs or sum(self._jobs.values()) + size > self._most_bytes):
            wait(self._jobs, return_when=FIRST_COMPLETED)
            self._collect()
        self._jobs[self._pool.submit(job, *args)] = size

    def finish(self) -> None:
        """Wait for all jobs; raise the error of the first that failed."""
        self._pool.shutdown()
        self._collect()

    def abandon(self) -> None:
        """Drop the jobs that have not started and wait for the others."""
        self._pool.shutdown(cancel_futures=True)

    def _collect(self) -> None:
        try:
            for job in [job for job in self._jobs if job.done()]:
                del self._jobs[job]
                job.result()
        except OSError as error:
            raise cannot_write(error.filename or "output", error) from error
