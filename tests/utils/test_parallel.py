"""Work in threads and processes: what happens to work that has started when an iteration ends early."""

from __future__ import annotations

import threading
import time

import pytest

from seamseg.utils.parallel import parallel_map, threaded_map

MINUTE = 60


def test_a_dropped_iteration_does_not_wait_for_threads():
    release, done = threading.Event(), []

    def work(number):
        if number:
            assert release.wait(MINUTE)
        done.append(number)
        return number

    iteration = threaded_map(work, range(100), 2)
    assert next(iteration) == 0
    iteration.close()
    # it returned although items hold the threads, which end with them: the others are left out
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]
    assert threads
    assert done == [0]
    release.set()
    for thread in threads:
        thread.join(MINUTE)
        assert not thread.is_alive()
    assert len(done) < 10


def test_an_error_waits_for_items_that_have_started():
    started, done = threading.Event(), []

    def work(number):
        if number == 0:
            assert started.wait(MINUTE)
            raise ValueError("broken")
        started.set()
        time.sleep(0.2)
        done.append(number)

    with pytest.raises(ValueError, match="broken"):
        list(threaded_map(work, range(100), 2))
    assert 1 in done
    assert len(done) < 10


def _wait_for(path):
    """Wait for the file; a worker process cannot share an event with the test."""
    path, number = path
    deadline = time.monotonic() + MINUTE
    while number and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


def test_a_dropped_iteration_does_not_wait_for_processes(tmp_path):
    path = tmp_path / "release"
    iteration = parallel_map(_wait_for, [(path, number) for number in range(100)], 2)
    assert next(iteration) == 0
    iteration.close()
    # those of the executor; they end after the items that they have
    managers = [thread for thread in threading.enumerate() if "ExecutorManager" in type(thread).__name__]
    assert managers
    path.touch()
    for thread in managers:
        thread.join(MINUTE)
        assert not thread.is_alive()
