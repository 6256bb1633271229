"""Bounds of whole numbers in tensors of an ONNX graph that depend on the image, such as indices of boxes.

OpenVINO does not check the indices of GatherND and ScatterElements, which read and write anywhere in memory: the graph
must show that they are in range, as those of exported networks do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from seamseg.formats.onnx_file import BOOL, DTYPES, INT64, WHOLE
from seamseg.inference.onnx_graph.call import Bounds, Call, Sized

_TYPES = {number: (int(np.iinfo(DTYPES[number]).min), int(np.iinfo(DTYPES[number]).max)) for number in WHOLE}
_TYPES[BOOL] = (0, 1)


def bounds_of(x: Sized) -> Bounds:
    """Return the bounds of what a tensor holds."""
    if x.dtype not in _TYPES:  # floats have no bounds
        return _TYPES[INT64]
    if x.value is not None and x.value.size:
        return int(x.value.min()), int(x.value.max())
    return x.bounds or _TYPES[x.dtype]


def bounded(call: Call, index: int, made: Sized) -> Bounds | None:
    """Return the bounds of a result of a node, by its index; None for those of its type."""
    rule = _RULES.get(call.node.op)
    if rule is None or made.dtype not in WHOLE:
        return None
    low, high = rule(call, index)
    least, most = _TYPES[made.dtype]
    # it might overflow
    return (low, high) if least <= low and high <= most else None


def check_indices(call: Call) -> None:
    """Raise RefusedFile if a node may read or write outside of its first input."""
    data, index, op = call[0], call[1], call.node.op
    if op == "ScatterElements":
        axes = [call.axis(call.attribute("axis", 0), len(data.shape))]
    else:
        axes = list(range(index.shape[-1] if index.shape else 0))
    low, high = bounds_of(index)
    fits = all(-data.shape[axis] <= low and high < data.shape[axis] for axis in axes)
    if index.count and not (data.exact and fits):
        raise call.wrong("has indices that may be out of range")


def _union(*parts: Bounds) -> Bounds:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _gathered(call: Call, index: int) -> Bounds:
    column = call[1].value
    if call[0].columns is not None and column is not None and column.size == 1 and call.attribute("axis", 0) in (1, -1):
        return call[0].columns[int(column.reshape(-1)[0])]
    # an engine may give 0 where an index is out of range
    return _union(bounds_of(call[0]), (0, 0))


def _pad(call: Call, index: int) -> Bounds:
    return _union(bounds_of(call[0]), bounds_of(call[2]) if call.has(2) else (0, 0))


def _clip(call: Call, index: int) -> Bounds:
    low, high = bounds_of(call[0])
    if call.has(1):
        low = max(low, bounds_of(call[1])[0])
        high = max(high, bounds_of(call[1])[0])
    if call.has(2):
        low, high = min(low, bounds_of(call[2])[1]), min(high, bounds_of(call[2])[1])
    return low, high


def _each(function: Callable[[Bounds, Bounds], Bounds]) -> Callable[[Call, int], Bounds]:
    return lambda call, index: reduce(function, (bounds_of(x) for x in call.inputs if x is not None))


def _times(a: Bounds, b: Bounds) -> Bounds:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _divided(call: Call, index: int) -> Bounds:
    (low, high), (least, most) = bounds_of(call[0]), bounds_of(call[1])
    if least <= 0:
        return _TYPES[INT64]
    ends = [sign * (abs(end) // by) for end in (low, high) for by in (least, most) for sign in ((end > 0) - (end < 0),)]
    # engines round to 0 or down
    return min(ends) - (low < 0), max(ends)


def _remainder(call: Call, index: int) -> Bounds:
    least, most = bounds_of(call[1])
    return (1 - most, most - 1) if least > 0 else _TYPES[INT64]


def _places(call: Call, index: int) -> Bounds:
    """Return the bounds of indices of the largest or least values."""
    if call.node.op == "TopK" and index == 0:
        return bounds_of(call[0])
    axis = call.axis(call.attribute("axis", -1 if call.node.op == "TopK" else 0), len(call[0].shape))
    return 0, max(call[0].shape[axis] - 1, 0)


_MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Expand", "Tile")
_RULES: dict[str, Callable[[Call, int], Bounds]] = {
    **dict.fromkeys((*_MOVES, "GatherND", "Cast"), lambda call, index: bounds_of(call[0])),
    **dict.fromkeys(("Gather", "GatherElements"), _gathered),
    "Concat": lambda call, index: _union(*(bounds_of(x) for x in call.inputs if x is not None)),
    "Pad": _pad,
    "Where": lambda call, index: _union(bounds_of(call[1]), bounds_of(call[2])),
    "Clip": _clip,
    "Max": _each(lambda a, b: (max(a[0], b[0]), max(a[1], b[1]))),
    "Min": _each(lambda a, b: (min(a[0], b[0]), min(a[1], b[1]))),
    "Add": _each(lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "Sub": _each(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "Mul": _each(_times),
    "Div": _divided,
    "Mod": _remainder,
    **dict.fromkeys(("TopK", "ArgMax", "ArgMin"), _places),
    "Shape": lambda call, index: (0, max(call[0].shape, default=0)),
    "Range": lambda call, index: _union(bounds_of(call[0]), bounds_of(call[1])),
}
