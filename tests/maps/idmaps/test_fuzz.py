"""The C library reads and writes inside of its arrays, as sanitizers see it. `tests/fuzz` has the streams."""

import random
from contextlib import suppress

import numpy as np
import pytest
from support.emulator import Raised, Worker, obstacle

INTEGERS = (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64)


def _labels(draw, rng):
    shape = draw.randint(0, 90), draw.randint(1, 150)
    runs = rng.integers(0, draw.choice((3, 120)), (2, *shape)).repeat(draw.choice((1, 9)), 2)
    return [ids.astype(draw.choice(INTEGERS)) for ids in runs]


def _masks(draw, rng):
    logits = rng.normal(0, 9, (draw.randint(0, 5), draw.randint(1, 20), draw.randint(1, 20))).astype(np.float32)
    logits.flat[: draw.choice((0, 0, 3))] = draw.choice((np.nan, np.inf, -np.inf))
    padded = draw.randint(1, 90), draw.randint(1, 90)
    return [logits, *padded, *(draw.randint(1, side) for side in padded)]


def _scored_masks(draw, rng):
    logits, *sides = _masks(draw, rng)
    scores = rng.random(len(logits), np.float32)
    return [logits, scores, *sides, draw.randint(1, 200), draw.randint(1, 900)]


def _overlay(draw, rng):
    size, photo = (draw.randint(1, 40), draw.randint(1, 150)), (draw.randint(1, 40), draw.randint(1, 150))
    count = draw.choice((1, 5, 40_000))
    rows, columns = (rng.integers(0, old, new) for old, new in zip(size, photo))
    if draw.random() < 0.5:
        photo, columns = (photo[0], size[1]), None
    ids = rng.integers(-1, count + 1, size, np.int32)
    colors, outlined = rng.integers(0, 256, (count, 3), np.uint8), rng.random(count) < 0.5
    return [np.zeros((*photo, 3), np.uint8), ids, rows, columns, colors, outlined, draw.choice((None, 0, 99, 256))]


def _png_rows(draw, rng):
    ids = rng.integers(-1, 9, (draw.randint(1, 40), draw.randint(1, 150)), np.int32)
    values = rng.integers(0, 1 << 24, 8, np.uint32)
    return [ids[1:], draw.choice((None, ids[0])), draw.choice((None, values))]


MADE = {
    "joint_histogram": _labels,
    "best_masks": _scored_masks,
    "best_classes": _masks,
    "mask_boxes": _masks,
    "overlay": _overlay,
    "png_rows": _png_rows,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_functions(name):
    if obstacle() is not None:
        pytest.skip(obstacle())
    worker = Worker(sanitized=True)
    for seed in range(2000):
        drawn = MADE[name](random.Random(seed), np.random.default_rng(seed))
        with suppress(Raised):  # of no mask
            worker.call("tests.support.idmap_calls", name, drawn, seed, wanted=False)
    worker.close()
