"""Work in threads and processes: what happens to it when an iteration ends early, or a parent is killed."""

import multiprocessing
import os
import threading
import time

import pytest
import torch

from seamseg.data.loader import BatchLoader, begin_worker
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.parallel import MAX_WORKERS, available_cores, check_workers, parallel_map, share_cores, threaded_map

MINUTE = 60


def test_a_wrong_number_of_workers():
    with pytest.raises(InputError, match=r"^`workers=-1`: must be at least 0$"):
        check_workers(-1)
    most = max(MAX_WORKERS, available_cores())
    with pytest.raises(InputError, match=rf"^`workers={2**63}`: must be at most {most}$"):
        check_workers(2**63)


@pytest.mark.parametrize(
    ("cores", "decoders", "writers"), [(1, 1, 2), (2, 2, 2), (4, 4, 2), (8, 4, 4), (16, 4, 8), (64, 16, 32)]
)
def test_shares_of_the_cores(monkeypatch, cores, decoders, writers):
    monkeypatch.setattr("seamseg.utils.parallel.available_cores", lambda: 3 * cores)
    for name, value in {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert share_cores() == (decoders, writers)


def test_a_dropped_iteration_does_not_wait_for_threads():
    release, done = threading.Event(), []

    def work(number):
        if number:
            assert release.wait(MINUTE)
        done.append(number)
        return number

    others = set(threading.enumerate())
    iteration = threaded_map(work, range(100), 2)
    assert next(iteration) == 0
    iteration.close()
    # it returned although items hold the threads, which end with them: the others are left out
    threads = set(threading.enumerate()) - others
    assert threads
    assert done == [0]
    release.set()
    for thread in threads:
        thread.join(MINUTE)
        assert not thread.is_alive()
    assert len(done) < 10


def test_processes_that_cannot_be_started(monkeypatch):
    """Those that were started end: the exit of the interpreter would wait for them."""
    fork, parent, calls = os.fork, os.getpid(), []

    def limited():
        calls.append(os.getpid())
        if len(calls) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    others = multiprocessing.active_children()
    monkeypatch.setattr("os.fork", limited)
    with pytest.raises(SeamsegError, match=r"cannot start 3 worker processes: Resource .*; `workers=1` starts none"):
        list(parallel_map(abs, range(10), 3))
    assert calls == [parent, parent]
    for worker in set(multiprocessing.active_children()) - set(others):
        worker.join(MINUTE)
        assert not worker.is_alive()


class _Endless(torch.utils.data.IterableDataset):
    """Soon its workers wait for a reader of what they have made."""

    def __iter__(self):
        while True:
            yield bytes(1 << 20)


def _wait(number):
    time.sleep(60 if number else 0)
    return number


def _start_workers(kind, started):
    if kind == "map":
        results = parallel_map(_wait, range(3), 2)
    else:
        results = iter(BatchLoader(_Endless(), batch_size=None, num_workers=2, worker_init_fn=begin_worker))
    next(results)
    started.send(None)
    time.sleep(60)


@pytest.mark.parametrize("kind", ["map", "loader"])
def test_workers_end_with_a_killed_parent(kind):
    context = multiprocessing.get_context("fork")
    messages, started = context.Pipe(duplex=False)
    parent = context.Process(target=_start_workers, args=(kind, started))
    parent.start()
    started.close()
    messages.recv()
    parent.kill()
    parent.join()
    # each worker has a copy of the other end
    assert messages.poll(2), "workers are alive"
    with pytest.raises(EOFError):
        messages.recv()


def test_workers_outlive_the_thread_that_has_started_them():
    results = parallel_map(str, range(9), 2)
    first = []
    thread = threading.Thread(target=lambda: first.append(next(results)))
    thread.start()
    thread.join()
    assert [*first, *results] == list("012345678")
