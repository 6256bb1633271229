"""The thread of the network: which images form a batch, and what happens to those that fail or are cancelled."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from support.serving import FAILS, RedNetwork, photo, red_predictor

from seamseg.contrib.serving.batching import Batcher
from seamseg.inference.tiling import Tiling


@pytest.fixture
def network():
    return RedNetwork()


@pytest.fixture
def open_batcher(network):
    opened = []

    def open_one(batch_size=4):
        opened.append(Batcher(red_predictor(network, Tiling(128)), batch_size))
        return opened[-1]

    yield open_one
    network.gate.set()
    for batcher in opened:
        batcher.close()


def occupy(network, batcher):
    """Start a batch, which stays in the network until its gate is opened."""
    future = batcher.submit(photo(99))
    assert network.started.acquire(timeout=60)
    return future


@pytest.mark.parametrize(("batch_size", "at_a_time"), [(None, 3), (2, 3), (1, 1)])
def test_each_core_computes_small_photos_unless_the_batch_size_is_1(
    network, open_batcher, monkeypatch, batch_size, at_a_time
):
    begun, ended = [], []

    @contextmanager
    def three(predictor):
        yield 3, lambda: begun.append(threading.current_thread())
        ended.append(True)

    monkeypatch.setattr("seamseg.inference.predictor.Predictor.images_at_a_time", three)
    batcher = open_batcher(batch_size)
    futures = [occupy(network, batcher) for _ in range(at_a_time)]
    futures += [batcher.submit(photo(k)) for k in range(4)]
    assert not network.started.acquire(timeout=0.05), "all are busy"
    assert batcher.alive
    network.gate.set()
    batcher.close()
    assert all(future.done() for future in futures)
    assert max(map(len, network.batches)) == (batch_size or 1)
    assert (len(begun), ended) == ((3, [True]) if at_a_time == 3 else (0, []))
    assert not any(thread.is_alive() for thread in begun)


def test_the_oldest_photo_is_first_and_cancelled_ones_are_not_computed(network, open_batcher):
    batcher = open_batcher(3)
    occupy(network, batcher)
    sizes = [(8, 16), (16, 8), (8, 16), (16, 8), (8, 16), (8, 16), (8, 16)]
    futures = [batcher.submit(photo(k, size=size)) for k, size in enumerate(sizes)]
    assert futures[2].cancel()
    assert batcher.waiting == 6
    network.gate.set()
    maps = [future.result(60).semantic for future in futures if not future.cancelled()]
    assert [m.shape for m in maps] == sizes[:2] + sizes[3:]
    assert all(m.base is None for m in maps), "no slice of the arrays of a batch"
    assert network.batches[1:] == [[(8, 16)] * 3, [(16, 8)] * 2, [(8, 16)]]
    assert network.seen[1:] == [0, 4, 5, 1, 3, 6]
    # one in tiles is a batch of its own
    futures = [batcher.submit(photo(k, size=(100, 180))) for k in range(2)]
    assert [f.result(60).semantic.shape for f in futures] == [(100, 180)] * 2
    assert all(len(batch) == 1 for batch in network.batches[4:])
    assert len(network.batches) > 7, "several tiles each"


def test_a_photo_that_fails_fails_alone(network, open_batcher):
    batcher = open_batcher(4)
    occupy(network, batcher)
    futures = [batcher.submit(photo(k, red=FAILS if k == 1 else 2)) for k in range(3)]
    network.gate.set()
    for k in (0, 2):
        assert np.array_equal(futures[k].result(60).semantic, np.full((12, 20), 2))
    with pytest.raises(ValueError, match="a red pixel"):
        futures[1].result(60)
    waiting = batcher.submit(photo(7))
    batcher.close()
    assert waiting.result(0).size == (12, 20), "the thread goes on, and closing computes what waits"
    assert not batcher.alive
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(photo(0))
