"""Joint histogram: plain form, dtypes, failures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seamseg.ops.histogram import joint_histogram
from seamseg.ops.reference.histogram import joint_histogram as joint_histogram_plain

from . import oracles
from .contract import check_operator

labels = st.integers(0, 5)


@given(st.lists(st.tuples(labels, labels), max_size=60), st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]))
def test_against_plain(pairs, dtype):
    a, b = (np.array([p[i] for p in pairs], dtype=dtype) for i in (0, 1))
    found, counts = joint_histogram(a, b)
    expected = oracles.joint_histogram(a.tolist(), b.tolist())
    assert [tuple(p) for p in found.tolist()] == sorted(expected)
    assert dict(zip(map(tuple, found.tolist()), counts.tolist())) == expected
    assert found.dtype == counts.dtype == np.int64


def test_maps_tensors_and_large_ids():
    a = torch.tensor([[0, 0, 256**3 - 1], [7, 7, 7]])
    b = np.array([[1, 1, 256**3 - 1], [1, 0, 0]], dtype=np.uint32)
    found, counts = joint_histogram(a, b)
    assert found.tolist() == [[0, 1], [7, 0], [7, 1], [256**3 - 1, 256**3 - 1]]
    assert counts.tolist() == [2, 2, 1, 1]
    strided = joint_histogram(a.T, b.T)
    assert strided[1].sum() == 6
    assert strided[0].tolist() == found.tolist()


TYPES = (np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


@given(
    st.tuples(st.integers(0, 60), st.integers(0, 300)),
    st.integers(1, 9),
    st.sampled_from([3, 300, 2**40]),
    st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)),
    st.sampled_from([1, 2, -1]),
    st.integers(0, 1000),
)
def test_kernel_equals_plain(size, run, highest, types, step, seed):
    rng = np.random.default_rng(seed)

    def labels(dtype):
        top = min(highest, 1 if dtype == np.bool_ else np.iinfo(dtype).max)
        values = rng.choice(rng.integers(0, top, 40, endpoint=True), (size[0], size[1] // run + 1)).astype(dtype)
        return values.repeat(run, 1)[:, : size[1]][:, ::step]

    a, b = (labels(dtype) for dtype in types)
    if int(a.max(initial=0)) * int(b.max(initial=0)) >= 2**60:
        a = a % 1000
    expected = joint_histogram_plain(*(torch.from_numpy(x.astype(np.int64)) for x in (a, b)))
    for found, wanted in zip(joint_histogram(a, b), expected):
        assert np.array_equal(found, wanted.numpy())


def test_many_labels_and_many_elements():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 3000, (2**22 + 5,), generator=generator) for _ in range(2))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)  # each with a table of its own
        found = joint_histogram(a, b)
    finally:
        torch.set_num_threads(before)
    counts = np.bincount((a * 3000 + b).numpy(), minlength=9_000_000)
    assert np.array_equal(found[0] @ [3000, 1], counts.nonzero()[0])
    assert np.array_equal(found[1], counts[counts > 0])


@pytest.mark.parametrize("highest", [5, 1000])
def test_runs_and_noise_in_turns(highest):
    rng = np.random.default_rng(highest)
    parts = [rng.integers(0, highest, 4096 // run + 1).repeat(run) for run in (1, 64, 1, 1, 700, 2, 1)]
    a = np.concatenate(parts)
    for b in (a[::-1].copy(), np.zeros_like(a), rng.integers(0, highest, a.size)):
        expected = joint_histogram_plain(torch.from_numpy(a), torch.from_numpy(b))
        for found, wanted in zip(joint_histogram(a, b), expected):
            assert np.array_equal(found, wanted.numpy())


def test_memory_that_must_not_be_written_to():
    a = np.frombuffer(bytes(range(6)), np.uint8)
    big_endian = np.arange(6, dtype=">i4")
    found, counts = joint_histogram(a, big_endian)
    assert found.tolist() == [[i, i] for i in range(6)] and counts.tolist() == [1] * 6


def test_operator():
    a = torch.randint(-3, 9, (30, 40))
    samples = [(a, a.int() + 1), (a[:, ::2], a[:, ::2] > 2), (a[:0], a[:0].byte()), (a * 10**15, a.T.contiguous().T)]
    check_operator("joint_histogram", samples[:2])
    for arguments in samples:  # negative labels are refused by the function, not by the operator
        for found, wanted in zip(torch.ops.seamseg.joint_histogram(*arguments), joint_histogram_plain(*arguments)):
            assert torch.equal(found, wanted)
    with pytest.raises(RuntimeError, match="one shape"):
        torch.ops.seamseg.joint_histogram(a, a[1:])
    with pytest.raises(RuntimeError, match="integer"):
        torch.ops.seamseg.joint_histogram(a, a.float())


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"one shape, got \(2, 3\) and \(6,\)"):
        joint_histogram(np.zeros((2, 3), int), np.zeros(6, int))
    with pytest.raises(TypeError, match="a must hold integers, got float64"):
        joint_histogram(np.zeros(3), np.zeros(3, int))
    with pytest.raises(ValueError, match="must not be negative"):
        joint_histogram(np.array([-1, 0]), np.array([0, 0]))
    with pytest.raises(ValueError, match="too large"):
        joint_histogram(np.array([2**40]), np.array([2**40]))
