"""Values of small tensors of whole numbers, with which ONNX graphs calculate shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from seamseg.formats.onnx_file import BOOL, DTYPES, UINT64, WHOLE
from seamseg.inference.onnx_graph.call import LARGEST, VALUES, Call, Sized

_TYPES = (BOOL, *(number for number in WHOLE if number != UINT64))
_MOVED_TYPES = (*_TYPES, 1, 11)
"""Types of numbers that are moved but not changed."""

_Compute = Callable[..., np.ndarray]
"""From a node, its result without a value, and the values of its inputs (None if left out) to the value."""


def computed(call: Call, made: Sized) -> np.ndarray | None:
    """Return the value of the result of a node; None if it is not known.

    It is known for few whole numbers below `LARGEST` where engines agree: not after arithmetic of floats, nor of a
    division of negative numbers.
    """
    rule = COMPUTE.get(call.node.op)
    types = _MOVED_TYPES if rule is _as_it_is else _TYPES
    if rule is None or not made.exact or made.count > VALUES or made.dtype not in types:
        return None
    if any(x is not None and (x.value is None or x.dtype not in types) for x in call.inputs):
        return None
    try:
        value = rule(call, made, *(None if x is None else x.value for x in call.inputs))
    except (ValueError, IndexError):
        raise call.wrong("has values out of range") from None
    if not _small(value):
        return None
    narrow = value.astype(DTYPES[made.dtype])
    return narrow.reshape(made.shape) if np.array_equal(narrow, value) else None


def _wide(function: Any) -> _Compute:
    """Compute in 64 bits; leave out large numbers, whose result could overflow."""

    def rule(call: Call, made: Sized, *values: np.ndarray) -> np.ndarray:
        wide = [value.astype(np.int64) for value in values]
        found: np.ndarray = function(*wide) if all(map(_small, wide)) else np.full(made.shape, LARGEST)
        return found

    return rule


def _small(value: np.ndarray) -> bool:
    """Whether all numbers are below the limit; floats are whole below 2^24, where float32 is exact."""
    limit = 1 << 24 if value.dtype.kind == "f" else LARGEST
    return bool(np.all((value > -limit) & (value < limit))) and (
        value.dtype.kind != "f" or bool(np.all(value % 1 == 0))
    )


def _positive(function: Any) -> _Compute:
    """Leave out negative numbers: engines round them differently."""

    def rule(call: Call, made: Sized, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if min(a.min(initial=0), b.min(initial=0)) < 0:
            return np.full(made.shape, LARGEST)
        return _wide(function)(call, made, a, b)

    return rule


def _slice(call: Call, made: Sized, x: np.ndarray, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    places = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes.tolist()
    steps = [1] * len(starts) if steps is None else steps.tolist()
    for axis, *bounds in zip(axes, starts.tolist(), ends.tolist(), steps):
        places[axis] = slice(*bounds)
    return x[tuple(places)]


def _reduced(function: Any) -> _Compute:
    def rule(call: Call, made: Sized, x: np.ndarray, axes: Any = None) -> Any:
        chosen = tuple(axes.tolist()) if axes is not None and axes.size else None
        if chosen is None and call.attribute("noop_with_empty_axes", 0):
            return x
        return _wide(lambda wide: function(wide, axis=chosen))(call, made, x)

    return rule


def _as_it_is(call: Call, made: Sized, x: np.ndarray, *_: Any) -> np.ndarray:
    return x


COMPUTE: dict[str, _Compute] = {
    **dict.fromkeys(("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), _as_it_is),
    "Add": _wide(np.add),
    "Sub": _wide(np.subtract),
    "Mul": _wide(np.multiply),
    "Div": _positive(np.floor_divide),
    "Mod": _positive(np.remainder),
    "Neg": _wide(np.negative),
    "Abs": _wide(np.abs),
    "Min": _wide(lambda *values: np.min(np.broadcast_arrays(*values), axis=0)),
    "Max": _wide(lambda *values: np.max(np.broadcast_arrays(*values), axis=0)),
    "Equal": _wide(np.equal),
    "Less": _wide(np.less),
    "LessOrEqual": _wide(np.less_equal),
    "Greater": _wide(np.greater),
    "GreaterOrEqual": _wide(np.greater_equal),
    "And": _wide(np.logical_and),
    "Or": _wide(np.logical_or),
    "Not": _wide(np.logical_not),
    "Where": lambda call, made, chosen, a, b: np.where(chosen, a.astype(np.int64), b.astype(np.int64)),
    "Concat": lambda call, made, *values: np.concatenate(values, call.attribute("axis", 0)),
    "Gather": lambda call, made, x, index: np.take(x, index, call.attribute("axis", 0)),
    "Slice": _slice,
    "Transpose": lambda call, made, x: np.transpose(x, call.attribute("perm", list(range(x.ndim))[::-1])),
    "Expand": lambda call, made, x, shape: np.broadcast_to(x, made.shape),
    "Tile": lambda call, made, x, repeats: np.tile(x, repeats),
    "Range": lambda call, made, start, limit, delta: np.arange(int(start.item()), int(limit.item()), int(delta.item())),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}
"""Operators whose results are computed."""
