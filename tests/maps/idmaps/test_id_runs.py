"""Runs of ids from compressed rows: the kernel against the compressed ids, broken streams."""

import json
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.png_streams import STRATEGIES, random_ids, stream_of

from seamseg.maps.formats.id_png import write_id_png
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.idmaps.id_runs import (
    IdRuns,
    box_of_runs,
    decode_id_runs,
    id_runs_of,
    joint_histogram_of_runs,
    runs_by_id,
    union_of_runs,
)


def check(ids, stream):
    runs = decode_id_runs(stream, *ids.shape)
    assert np.array_equal(runs.dense(), ids)
    assert runs.dense().dtype == np.uint32
    expected = id_runs_of(ids)
    assert np.array_equal(runs.starts, expected.starts)
    assert np.array_equal(runs.ids, expected.ids)
    assert runs.starts.dtype == runs.ids.dtype == expected.starts.dtype == expected.ids.dtype == np.int32


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 40)),
    st.sampled_from([1, 2, 5, 30]),
    st.sampled_from([None, 0, 1, 2, 3, 4]),
    st.integers(0, 9),
    st.sampled_from(STRATEGIES),
    st.sampled_from([9, 15]),
    st.sampled_from([None, 17]),
    st.integers(0, 10_000),
)
def test_streams_of_any_kind(size, run, kind, level, strategy, wbits, flush_every, seed):
    rng = np.random.default_rng(seed)
    ids = random_ids(rng, *size, run)
    filters = rng.integers(0, 5, size[0]) if kind is None else np.full(size[0], kind)
    stream = stream_of(ids, filters, level, strategy, wbits, flush_every)
    check(ids, stream)


@pytest.mark.parametrize("size", [(3, 30_000), (250, 257), (12_000, 1)])
@pytest.mark.parametrize(("run", "level"), [(1, 0), (200, 9)])
def test_more_than_the_window(size, run, level):
    rng = np.random.default_rng(run)
    ids = random_ids(rng, *size, run)
    check(ids, stream_of(ids, rng.integers(0, 5, size[0]), level))


@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED])
def test_wrong_bits_are_found(strategy):
    rng = np.random.default_rng(1)
    ids = random_ids(rng, 9, 21, 3)
    stream = stream_of(ids, [0, 1, 2, 3, 4, 2, 4, 1, 3], 9, strategy)
    for bit in range(8 * len(stream)):
        wrong = bytearray(stream)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            zlib.decompress(wrong)  # some bits mean nothing
        except zlib.error:
            with pytest.raises(ValueError, match="decode_id_runs: "):
                decode_id_runs(wrong, 9, 21)
        else:
            assert np.array_equal(decode_id_runs(wrong, 9, 21).dense(), ids)
    for length in range(len(stream)):
        with pytest.raises(ValueError, match="decode_id_runs: "):
            decode_id_runs(stream[:length], 9, 21)


def test_wrong_streams():
    ids = np.arange(12, dtype=np.uint32).reshape(3, 4)
    stream = stream_of(ids, [0, 1, 2])
    assert np.array_equal(decode_id_runs(stream + b"more", 3, 4).dense(), ids)
    for size in ((2, 4), (4, 4), (3, 5), (0, 4), (3, -1), (3, 2**30)):
        words = {(2, 4): "too long", (0, 4): "1 to 2", (3, -1): "1 to 2"}.get(size, "too short")
        with pytest.raises(ValueError, match=f"decode_id_runs: .*{words}"):
            decode_id_runs(stream, *size)
    with pytest.raises(ValueError, match="unknown filter"):
        decode_id_runs(zlib.compress(b"\5" + bytes(12)), 1, 4)
    with pytest.raises(ValueError, match="incorrect header check"):
        decode_id_runs(zlib.compress(bytes(13))[2:], 1, 4)


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_histogram(height, width, run_a, run_b, seed):
    rng = np.random.default_rng(seed)
    a, b = (random_ids(rng, height, width, run) for run in (run_a, run_b))
    found = joint_histogram_of_runs(id_runs_of(a), id_runs_of(b))
    for x, y in zip(found, joint_histogram(a, b)):
        assert np.array_equal(x, y)
        assert x.dtype == y.dtype


def test_histogram_of_wrong_runs():
    a, b = id_runs_of(np.zeros((2, 3), int)), id_runs_of(np.zeros((3, 2), int))
    with pytest.raises(ValueError, match="sizes differ, 2 x 3 and 3 x 2"):
        joint_histogram_of_runs(a, b)
    starts = np.array([0, 4, 2], np.int32)
    for first, words in ((starts, "rise"), (starts[:0], "without runs")):
        with pytest.raises(ValueError, match=words):
            joint_histogram_of_runs(IdRuns(2, 3, first, first), a)


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 5), st.integers(0, 1000))
@example(3, 4, 1, 3)  # runs that continue at the top of the next column
def test_union_and_box_of_runs_down_the_columns(height, width, run, seed):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 4, (2, height // run + 1, width // run + 1))
    layers = blocks.repeat(run, 1).repeat(run, 2)[:, :height, :width]
    runs = [runs_by_id(layer.T) for layer in layers]
    assert [sorted(of) for of in runs] == [sorted(set(layer.ravel().tolist()) - {0}) for layer in layers]
    for i in set(runs[0]) | set(runs[1]):
        start, length = union_of_runs([of[i] for of in runs if i in of])
        inside = np.isin(np.arange(height * width), np.concatenate([s + np.arange(n) for s, n in zip(start, length)]))
        mask = (layers[0] == i) | (layers[1] == i)
        assert np.array_equal(inside.reshape(width, height).T, mask)
        assert (start[1:] > (start + length)[:-1]).all(), "runs that touch are one"
        y, x = np.nonzero(mask)
        assert box_of_runs(start, length, height) == [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]


REPORT = """
import json, sys
from seamseg.maps.formats.id_png import read_id_runs
from seamseg.maps.idmaps import id_runs, library
runs = read_id_runs(sys.argv[1])
pairs, counts = id_runs.joint_histogram_of_runs(runs, runs)
print(json.dumps([library.state, pairs.tolist(), counts.tolist(), "torch" in sys.modules]))
"""


@pytest.mark.parametrize(("plain", "state"), [("", "loaded"), ("1", "switched off by SEAMSEG_PLAIN_OPS")])
def test_with_and_without(tmp_path, plain, state):
    write_id_png(tmp_path / "map.png", np.array([[7, 7, 9], [0, 9, 70_000]]))
    command = [sys.executable, "-c", REPORT, str(tmp_path / "map.png")]
    environment = {**os.environ, "SEAMSEG_PLAIN_OPS": plain}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [state, [[i, i] for i in (0, 7, 9, 70_000)], [1, 2, 2, 1], False]
    assert done.stderr == ""
