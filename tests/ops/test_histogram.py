"""Joint histogram: plain form, dtypes, failures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seamseg.ops.histogram import joint_histogram

from . import oracles

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


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"one shape, got \(2, 3\) and \(6,\)"):
        joint_histogram(np.zeros((2, 3), int), np.zeros(6, int))
    with pytest.raises(TypeError, match="a must hold integers, got float64"):
        joint_histogram(np.zeros(3), np.zeros(3, int))
    with pytest.raises(ValueError, match="must not be negative"):
        joint_histogram(np.array([-1, 0]), np.array([0, 0]))
    with pytest.raises(ValueError, match="too large"):
        joint_histogram(np.array([2**40]), np.array([2**40]))
