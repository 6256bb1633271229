"""Counting pairs of labels of two maps (panoptic quality, confusion)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from seamseg.idmaps import library, plain

if TYPE_CHECKING:
    from torch import Tensor

    ArrayLike = np.ndarray | Tensor


def as_array(values: ArrayLike) -> np.ndarray:
    """The values of an array or a tensor, which is copied from a GPU and not otherwise."""
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)


def is_tensor(values: object) -> TypeGuard[Tensor]:
    """Whether it is one of torch's, which somebody has imported then."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


if TYPE_CHECKING:
    pass


def joint_histogram(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
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
    first, second = _integers("a", a), _integers("b", b)
    if first.shape != second.shape:
        raise ValueError(f"joint_histogram: a and b must have one shape, got {first.shape} and {second.shape}")
    pairs, counts = (library.functions or plain).joint_histogram(first, second)
    if len(pairs):
        if pairs.min() < 0:
            raise ValueError("joint_histogram: labels must not be negative")
        highest = pairs.max(0).tolist()
        if highest[0] >= np.iinfo(np.int64).max // (highest[1] + 1):
            raise ValueError("joint_histogram: labels are too large to be paired in 64 bits")
    return pairs, counts


def _integers(name: str, labels: ArrayLike) -> np.ndarray:
    # numpy has no word for some of torch's kinds of numbers
    if is_tensor(labels) and (labels.is_floating_point() or labels.is_complex()):
        raise TypeError(f"joint_histogram: {name} must hold integers, got {labels.dtype}")
    array = as_array(labels)
    if array.dtype.kind not in "iub":
        raise TypeError(f"joint_histogram: {name} must hold integers, got {array.dtype}")
    return array
