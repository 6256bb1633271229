"""Joint histogram: C and numpy, dtypes, failures."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.idmap_calls import by_c_and_numpy

from seamseg.maps.idmaps.histogram import joint_histogram

labels = st.integers(0, 5)


def check(a, b):
    for found, wanted in zip(*by_c_and_numpy(joint_histogram, a, b)):
        assert np.array_equal(found, wanted)
        assert found.dtype == wanted.dtype == np.int64


@given(st.lists(st.tuples(labels, labels), max_size=60), st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]))
def test_against_counter(pairs, dtype):
    a, b = (np.array([p[i] for p in pairs], dtype=dtype) for i in (0, 1))
    found, counts = joint_histogram(a, b)
    expected = dict(Counter(zip(a.tolist(), b.tolist())))
    assert [tuple(p) for p in found.tolist()] == sorted(expected)
    assert dict(zip(map(tuple, found.tolist()), counts.tolist())) == expected
    assert found.dtype == counts.dtype == np.int64


TYPES = (np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


@given(
    st.tuples(st.integers(0, 60), st.integers(0, 300)),
    st.integers(1, 9),
    st.sampled_from([3, 300, 2**40]),
    st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)),
    st.sampled_from([1, 2, -1]),
    st.integers(0, 1000),
)
def test_kernel_equals_reference(size, run, highest, types, step, seed):
    rng = np.random.default_rng(seed)

    def labels(dtype):
        top = min(highest, 1 if dtype == np.bool_ else np.iinfo(dtype).max)
        values = rng.choice(rng.integers(0, top, 40, endpoint=True), (size[0], size[1] // run + 1)).astype(dtype)
        return values.repeat(run, 1)[:, : size[1]][:, ::step]

    a, b = (labels(dtype) for dtype in types)
    if int(a.max(initial=0)) * int(b.max(initial=0)) >= 2**60:
        a = a % 1000
    check(a, b)


def test_many_labels_and_many_elements():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 3000, (2**22 + 5,), generator=generator) for _ in range(2))
    found = joint_histogram(a, b)
    counts = np.bincount((a * 3000 + b).numpy(), minlength=9_000_000)
    assert np.array_equal(found[0] @ [3000, 1], counts.nonzero()[0])
    assert np.array_equal(found[1], counts[counts > 0])


@pytest.mark.parametrize("highest", [5, 1000])
def test_runs_and_noise_in_turns(highest):
    rng = np.random.default_rng(highest)
    parts = [rng.integers(0, highest, 4096 // run + 1).repeat(run) for run in (1, 64, 1, 1, 700, 2, 1)]
    a = np.concatenate(parts)
    for b in (a[::-1].copy(), np.zeros_like(a), rng.integers(0, highest, a.size)):
        check(a, b)


def test_types_and_views():
    a = np.random.default_rng(0).integers(0, 9, (30, 40))
    for x, y in [(a, a.astype(np.int32) + 1), (a[:, ::2], a[:, ::2] > 2), (a[:0], a[:0].astype(np.uint8)),
                 (a * 10**15, a), (a.T, np.asfortranarray(a.T)), (a.astype(">i2"), a.astype(np.int8)),
                 (np.frombuffer(b"x" + a.tobytes(), np.int64, offset=1), a.ravel())]:  # fmt: skip
        check(x, y)


def test_wrong_arguments():
    three = np.zeros(3, int)
    for function, a, b, error, words in (
        (joint_histogram, three, np.zeros((1, 3), int), ValueError, r"the same shape, got \(3,\) and \(1, 3\)"),
        (joint_histogram, np.zeros((1, 3), int), three, ValueError, r"the same shape, got \(1, 3\) and \(3,\)"),
        (joint_histogram, np.zeros(3), three, TypeError, "a must hold integers, got float64"),
        (joint_histogram, three, torch.zeros(3), TypeError, "b must hold integers, got float32"),
        (joint_histogram, three - 1, three, ValueError, "must not be negative"),
        (joint_histogram, (three - 1).astype(np.int8), three, ValueError, "must not be negative"),
    ):
        with pytest.raises(error, match=words):
            function(a, b)
    largest = np.iinfo(np.int64).max
    assert joint_histogram(three + largest, three + 1)[0].tolist() == [[largest, 1]]
