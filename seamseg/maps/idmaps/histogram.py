"""Joint histograms of the labels of two maps, for panoptic quality and confusion matrices."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from seamseg.maps.idmaps import library, reference

if TYPE_CHECKING:
    from torch import Tensor

ArrayLike: TypeAlias = "np.ndarray | Tensor"


def as_array(values: ArrayLike) -> np.ndarray:
    """Convert an array or tensor to an array; only tensors on a GPU are copied."""
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)


def is_tensor(values: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def joint_histogram(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Count the elements with each pair of labels of two arrays or tensors of the same shape, of any integer types.

    Returns the pairs that occur, `K x 2` int64, sorted, and their counts, `K` int64. Tensors on a GPU are copied.
    TypeError for other than integers; ValueError for other shapes or negative labels.
    """
    first, second = as_array(a), as_array(b)
    for name, labels in (("a", first), ("b", second)):
        if labels.dtype.kind not in "iub":
            raise TypeError(f"joint_histogram: {name} must hold integers, got {labels.dtype}")
    if first.shape != second.shape:
        raise ValueError(f"joint_histogram: a and b must have the same shape, got {first.shape} and {second.shape}")
    if library.functions is None:
        pairs, counts = reference.joint_histogram(first, second)
    else:
        first, second = (np.asarray(labels, labels.dtype.newbyteorder("=")) for labels in (first, second))
        codes = [-x.dtype.itemsize if x.dtype.kind == "i" else x.dtype.itemsize for x in (first, second)]
        pairs, counts = pairs_of("joint_histogram", first, codes[0], second, codes[1], first.size)
    if pairs.min(initial=0) < 0:
        raise ValueError("joint_histogram: labels must not be negative")
    return pairs, counts


def pairs_of(name: str, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted pairs and counts of a function of the C library."""
    count = ctypes.c_int64(0)
    found = library.call(name, *arguments, ctypes.byref(count))
    pairs, counts = np.empty((count.value, 2), np.int64), np.empty(count.value, np.int64)
    library.call("take_pairs", found, pairs, counts)
    return pairs, counts
