"""The C library never crashes: each call returns or raises, also under sanitizers."""

import random

import numpy as np
import pytest
from support.emulator import Fault, Raised, Worker, obstacle
from support.png_streams import STRATEGIES, random_ids, stream_of

from seamseg.idmaps.id_runs import id_runs_of

EXPECTED = {"ValueError", "TypeError", "MemoryError", "_ArrayMemoryError", "AttributeError", "OverflowError"}
INTEGERS = (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64)
WILD = (-1, 0, 1, 2, 255, -(2**63), 2**63 - 1, 2**63, 2**31 - 1, 2**31, 2**40, 2**62, 2**70)
FEW, MANY = 40, 2000


def _stream(draw, rng):
    height, width = draw.randint(1, 40), draw.randint(1, 150)
    ids = random_ids(rng, height, width, draw.choice((1, 4, 30)))
    made = (draw.randrange(10), draw.choice(STRATEGIES), draw.choice((9, 15)))
    stream = bytearray(stream_of(ids, rng.integers(0, 5, height), *made))
    for _ in range(draw.choice((0, 0, 1, 3))):
        stream[draw.randrange(len(stream))] = draw.randrange(256)
    return [bytes(stream), height, width]


def _labels(draw, rng):
    shape = draw.randint(0, 90), draw.randint(1, 150)
    runs = rng.integers(0, draw.choice((3, 120)), (2, *shape)).repeat(draw.choice((1, 9)), 2)
    return [ids.astype(draw.choice(INTEGERS)) for ids in runs]


def _runs(draw, rng):
    height, width = draw.randint(1, 40), draw.randint(1, 150)
    maps = [id_runs_of(random_ids(rng, height, width, draw.choice((1, 4, 30)))) for _ in range(2)]
    return [array for runs in maps for array in (runs.starts, runs.ids)] + [height * width]


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
    "decode_id_runs": _stream,
    "joint_histogram": _labels,
    "joint_histogram_of_runs": _runs,
    "best_masks": _scored_masks,
    "best_classes": _masks,
    "mask_boxes": _masks,
    "overlay": _overlay,
    "png_rows": _png_rows,
}


def _mistaken(draw, value):
    if draw.random() < 0.04:
        return draw.choice((None, "nonsense", [], -1, 0.5, b"", np.zeros(3), np.array(3), [np.zeros(2, int)]))
    if isinstance(value, int):
        return draw.choice((value + 1, value - 1, -value, value * 1000, *WILD))
    if isinstance(value, bytes):
        return draw.choice((value[: draw.randrange(len(value) + 1)], value + value, bytearray(value), value[::-1]))
    if value.ndim == 0:
        return value
    flat = value.copy()
    if flat.size:
        flat.flat[draw.randrange(flat.size)] = (
            draw.choice((0, 1, np.iinfo(flat.dtype).max)) if flat.dtype.kind in "iu" else 1
        )
    odd = np.frombuffer(b"x" + flat.tobytes(), flat.dtype, offset=1).reshape(flat.shape)
    with np.errstate(invalid="ignore"):  # NaN as an integer
        other = value.astype(draw.choice((*INTEGERS, np.float32, ">i4", "O")))
    wrong = (odd, value[: len(value) // 2], value[::-1], other)
    return draw.choice((flat, flat, value.T, np.append(value, value), *wrong))


def throw(worker, name, seeds):
    """Call with arguments drawn from each seed, with up to three mistakes."""
    raised = 0
    for seed in seeds:
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        arguments = MADE[name](draw, rng)
        for _ in range(draw.randint(0, 3)):
            i = draw.randrange(len(arguments))
            if isinstance(arguments[i], (int, bytes)) or getattr(arguments[i], "dtype", np.dtype("O")).kind in "iubf":
                arguments[i] = _mistaken(draw, arguments[i])
        try:
            worker.call("tests.support.idmap_calls", name, arguments, seed, wanted=False)
        except Raised as error:
            raised += 1
            if error.kind not in EXPECTED or not error.words.strip():
                pytest.fail(f"{name}, seed {seed}: {error}")
        except Fault as fault:
            pytest.fail(f"{name}, seed {seed}: {fault}")
    assert len(seeds) / 10 < raised < len(seeds) * 9 / 10, "both valid and invalid calls must occur"


@pytest.fixture(scope="module", params=["installed", pytest.param("sanitized", marks=pytest.mark.slow)])
def worker(request):
    if request.param == "sanitized" and obstacle() is not None:
        pytest.skip(obstacle())
    worker = Worker(sanitized=request.param == "sanitized")
    yield worker
    worker.close()


@pytest.mark.parametrize("name", MADE)
def test_functions(worker, name):
    throw(worker, name, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_functions_often(worker, name):
    throw(worker, name, range(MANY))
