"""Counting pairs of labels of two maps (panoptic quality, confusion)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ._library import define
from .reference.histogram import joint_histogram as joint_histogram_plain

_Labels = np.ndarray | Tensor


def joint_histogram(a: _Labels, b: _Labels) -> tuple[np.ndarray, np.ndarray]:
    """How many elements carry each pair of labels.

    The two may be of different integer types; neither is converted. Tensors on a GPU are copied from it.

    Parameters
    ----------
    a, b : non-negative integer arrays or tensors of one shape

    Returns
    -------
    pairs : `K x 2` int64, the pairs that occur, rising
    counts : `K` int64

    Raises
    ------
    TypeError
        if one does not hold integers
    ValueError
        if the shapes differ, a label is negative, or labels are too large for a pair to fit into 64 bits
    """
    first, second = _tensor("a", a), _tensor("b", b)
    if first.shape != second.shape:
        raise ValueError(f"joint_histogram: a and b must have one shape, got {np.shape(a)} and {np.shape(b)}")
    pairs, counts = (x.numpy() for x in _joint_histogram(first, second))
    if len(pairs):
        if pairs.min() < 0:
            raise ValueError("joint_histogram: labels must not be negative")
        highest = pairs.max(0).tolist()
        if highest[0] >= np.iinfo(np.int64).max // (highest[1] + 1):
            raise ValueError("joint_histogram: labels are too large to be paired in 64 bits")
    return pairs, counts


def _tensor(name: str, labels: _Labels) -> Tensor:
    if isinstance(labels, Tensor):
        if labels.is_floating_point() or labels.is_complex():
            raise TypeError(f"joint_histogram: {name} must hold integers, got {labels.dtype}")
        return labels.detach().cpu()
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        raise TypeError(f"joint_histogram: {name} must hold integers, got {array.dtype}")
    # what torch cannot look at where it lies: foreign byte order, odd strides, memory that must not be written to
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _fake(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return a.new_empty((count, 2), dtype=torch.int64), a.new_empty(count, dtype=torch.int64)


_joint_histogram = define("joint_histogram(Tensor a, Tensor b) -> (Tensor, Tensor)", joint_histogram_plain, _fake)
