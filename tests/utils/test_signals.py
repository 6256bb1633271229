"""Signals that end a process, where a system or its program differs; and workers whose parent is killed."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import pytest
import torch

from seamseg.data.loader import BatchLoader, begin_worker
from seamseg.utils.parallel import parallel_map


class _Endless(torch.utils.data.IterableDataset):
    """Soon its workers wait for a reader of what they have made."""

    def __iter__(self):
        while True:
            yield bytes(1 << 20)


def _wait(number: int) -> int:
    time.sleep(60 if number else 0)
    return number


def _start_workers(kind: str, started: Connection) -> None:
    if kind == "map":
        results = parallel_map(_wait, range(3), 2)
    else:
        results = iter(BatchLoader(_Endless(), batch_size=None, num_workers=2, worker_init_fn=begin_worker))
    next(results)
    started.send(None)
    time.sleep(60)


def _work(kind: str, in_thread: bool, started: Connection) -> None:
    if in_thread:
        thread = threading.Thread(target=_start_workers, args=(kind, started))
        thread.start()
        thread.join()
    else:
        _start_workers(kind, started)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("kind", ["map", "loader"])
def test_workers_end_with_a_killed_parent(kind, in_thread):
    context = multiprocessing.get_context("fork")
    messages, started = context.Pipe(duplex=False)
    parent = context.Process(target=_work, args=(kind, in_thread, started))
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
    first: list[str] = []
    thread = threading.Thread(target=lambda: first.append(next(results)))
    thread.start()
    thread.join()
    assert [*first, *results] == list("012345678")
