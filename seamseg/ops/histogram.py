"""Counting pairs of labels of two maps (panoptic quality, confusion)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

_Labels = np.ndarray | Tensor


def joint_histogram(a: _Labels, b: _Labels) -> tuple[np.ndarray, np.ndarray]:
    """How many elements carry each pair of labels.

    Label maps are made of long runs; only where a run starts is there anything to sort.

    Parameters
    ----------
    a, b : non-negative integer arrays or tensors of one shape

    Returns
    -------
    pairs : `K x 2` int64, the pairs that occur, rising
    counts : `K` int64
    """
    first, second = _flat("a", a), _flat("b", b)
    if np.shape(a) != np.shape(b):
        raise ValueError(f"joint_histogram: a and b must have one shape, got {np.shape(a)} and {np.shape(b)}")
    if first.size == 0:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    change = first[1:] != first[:-1]
    change |= second[1:] != second[:-1]
    start = np.concatenate(([0], np.flatnonzero(change) + 1))
    length = np.diff(start, append=first.size)
    left, right = first[start].astype(np.int64), second[start].astype(np.int64)
    if left.min() < 0 or right.min() < 0:
        raise ValueError("joint_histogram: labels must not be negative")
    base = int(right.max()) + 1
    if int(left.max()) >= np.iinfo(np.int64).max // base:
        raise ValueError("joint_histogram: labels are too large to be paired in 64 bits")
    keys, where = np.unique(left * base + right, return_inverse=True)
    counts = np.zeros(len(keys), np.int64)
    np.add.at(counts, where.reshape(-1), length)
    return np.stack((keys // base, keys % base), axis=1), counts


def _flat(name: str, labels: _Labels) -> np.ndarray:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "iub":
        raise TypeError(f"joint_histogram: {name} must hold integers, got {array.dtype}")
    return array.reshape(-1)
