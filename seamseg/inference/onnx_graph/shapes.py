"""Rules of the operators of ONNX that work on elements or shapes, see :mod:`seamseg.inference.onnx_graph.call`."""

from __future__ import annotations

import math

import numpy as np

from seamseg.formats.onnx_file import BOOL, INT64, ITEM_BYTES, WHOLE, Tensor
from seamseg.inference.onnx_graph.bounds import check_indices
from seamseg.inference.onnx_graph.call import Call, Rule, Sized

_ELEMENTS = (
    *("Abs", "Ceil", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("Identity", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round"),
    *("Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt", "Tanh", "Trilu"),
)
"""The result has the shape of the first input."""
_COMPARISONS = ("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _elementwise(dtype: int | None = None, of: int = 0) -> Rule:
    """Return the rule of operators on elements; of the type of an input, or of one type."""

    def rule(call: Call) -> list[Sized]:
        shapes = [x.shape for x in call.inputs if x is not None]
        return [call.made(call.broadcast(*shapes), call[of].dtype if dtype is None else dtype)]

    return rule


def _divide(call: Call) -> list[Sized]:
    divisor = call[1]
    if divisor.dtype in WHOLE and (divisor.value is None or not np.all(divisor.value)):
        # engines end in SIGFPE
        raise call.wrong("divides whole numbers by what may be 0")
    return _elementwise()(call)


def _cast(call: Call) -> list[Sized]:
    dtype = call.attribute("to", 0)
    if dtype not in ITEM_BYTES:
        raise call.wrong(f"makes values of the type {dtype}")
    return [call.made(call[0].shape, dtype)]


def _constant(call: Call) -> list[Sized]:
    value = call.node.attributes.get("value")
    if isinstance(value, Tensor):
        return [Sized.of(value)]
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32)):
        if name in call.node.attributes:
            numbers = np.array(call.node.attributes[name], dtype)
            return [Sized(numbers.shape, INT64 if dtype == np.int64 else 1, True, numbers)]
    raise call.wrong("has no tensor")


def _shape(call: Call) -> list[Sized]:
    shape, rank = call[0].shape, len(call[0].shape)
    start, end = call.attribute("start", 0), call.attribute("end", rank)
    start, end = (max(0, min(at + rank if at < 0 else at, rank)) for at in (start, end))
    sides = np.array(shape[start:end], np.int64)
    return [Sized(sides.shape, INT64, True, sides if call[0].exact else None, True)]


def _constant_of_shape(call: Call) -> list[Sized]:
    value = call.node.attributes.get("value")
    return [call.made(call.numbers(0), value.dtype if isinstance(value, Tensor) else 1)]


def _tile(call: Call) -> list[Sized]:
    repeats = call.numbers(1)
    if len(repeats) != len(call[0].shape):
        raise call.wrong(f"has {len(repeats)} repeats")
    return [call.made([side * times for side, times in zip(call[0].shape, repeats)])]


def _range(call: Call) -> list[Sized]:
    start, limit, delta = (call.number(index) for index in range(3))
    if delta == 0:
        raise call.wrong("has steps of 0")
    return [call.made([max(0, -((start - limit) // delta))])]


def _reshape(call: Call) -> list[Sized]:
    x, wanted = call[0], call.numbers(1)
    if not call.attribute("allowzero", 0):
        if any(side == 0 and axis >= len(x.shape) for axis, side in enumerate(wanted)):
            raise call.wrong("copies a side that is not there")
        wanted = [x.shape[axis] if side == 0 else side for axis, side in enumerate(wanted)]
    if wanted.count(-1) > 1 or min(wanted, default=1) < -1:
        raise call.wrong("has several free sides")
    rest = math.prod(side for side in wanted if side != -1)
    if -1 in wanted:
        if rest == 0:
            raise call.wrong("has a free side beside a side of 0")
        wanted[wanted.index(-1)] = x.count // rest
    if x.exact and math.prod(wanted) != x.count:
        raise call.wrong(f"makes {wanted!s:.60} of {list(x.shape)!s:.60}")
    return [call.made(wanted)]


def _flatten(call: Call) -> list[Sized]:
    shape = call[0].shape
    axis = call.attribute("axis", 1)
    axis = call.axis(axis, len(shape)) if axis != len(shape) else axis
    return [call.made((math.prod(shape[:axis]), math.prod(shape[axis:])))]


def _squeeze(call: Call) -> list[Sized]:
    x = call[0]
    axes = call.axes(1, len(x.shape))
    if axes is None:
        if not x.exact:
            raise call.wrong("drops sides of unknown length")
        axes = [axis for axis, side in enumerate(x.shape) if side == 1]
    if any(x.shape[axis] != 1 for axis in axes):
        raise call.wrong("drops a side that is not 1")
    return [call.made([side for axis, side in enumerate(x.shape) if axis not in axes])]


def _unsqueeze(call: Call) -> list[Sized]:
    shape = list(call[0].shape)
    axes = call.axes(1, len(shape) + len(call.numbers(1)))
    for axis in sorted(axes or []):
        shape.insert(axis, 1)
    return [call.made(shape)]


def _transpose(call: Call) -> list[Sized]:
    shape = call[0].shape
    order = call.attribute("perm", list(range(len(shape)))[::-1])
    if sorted(order) != list(range(len(shape))):
        raise call.wrong(f"has the order {order!s:.40}")
    return [call.made([shape[axis] for axis in order])]


def _concat(call: Call) -> list[Sized]:
    first = list(call[0].shape)
    axis = call.axis(call.attribute("axis", 0), len(first))
    shapes = [call[index].shape for index in range(len(call.inputs))]
    for shape in shapes:
        if len(shape) != len(first):
            raise call.wrong("joins tensors of several ranks")
    sides = [max(column) for column in zip(*shapes)]
    others = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in call.inputs if x is not None and x.exact}
    if len(others) > 1:
        raise call.wrong("joins tensors of other sides")
    sides[axis] = sum(shape[axis] for shape in shapes)
    return [call.made(sides)]


def _slice(call: Call) -> list[Sized]:
    x, rank = call[0], len(call[0].shape)
    starts, ends = call.numbers(1), call.numbers(2)
    axes = call.axes(3, rank) or list(range(len(starts)))
    steps = call.numbers(4) if call.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) <= rank or 0 in steps:
        raise call.wrong("has starts, ends, axes and steps that do not fit")
    sides = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if x.exact:
            sides[axis] = len(range(*slice(start, end, step).indices(sides[axis])))
    return [call.made(sides)]


def _split(call: Call) -> list[Sized]:
    shape, parts = list(call[0].shape), len(call.node.outputs)
    axis = call.axis(call.attribute("axis", 0), len(shape))
    if call.has(1):
        sizes = call.numbers(1)
    else:
        each = -(-shape[axis] // parts)
        sizes = [max(0, min(each, shape[axis] - each * part)) for part in range(parts)]
    if len(sizes) != parts or sum(sizes) != shape[axis] or min(sizes) < 0:
        raise call.wrong(f"has parts of {sizes!s:.60}")
    return [call.made([*shape[:axis], size, *shape[axis + 1 :]]) for size in sizes]


def _gather(call: Call) -> list[Sized]:
    shape, index = call[0].shape, call[1].shape
    axis = call.axis(call.attribute("axis", 0), len(shape))
    return [call.made((*shape[:axis], *index, *shape[axis + 1 :]))]


def _gather_nd(call: Call) -> list[Sized]:
    shape, index = call[0].shape, call[1].shape
    if call.attribute("batch_dims", 0) != 0 or not index or not call[1].exact or index[-1] > len(shape):
        raise call.wrong("has indices of another shape")
    check_indices(call)
    return [call.made((*index[:-1], *shape[index[-1] :]))]


def _scatter(call: Call) -> list[Sized]:
    check_indices(call)
    # the values may be any
    return [Sized(call[0].shape, call[0].dtype, call[0].exact)]


def _pad(call: Call) -> list[Sized]:
    shape, pads = list(call[0].shape), call.numbers(1)
    axes = call.axes(3, len(shape)) or list(range(len(shape)))
    if len(pads) != 2 * len(axes):
        raise call.wrong(f"has {len(pads)} sides to pad")
    for place, axis in enumerate(axes):
        shape[axis] += pads[place] + pads[place + len(axes)]
    return [call.made(shape)]


SHAPES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTS, lambda call: [call.made(call[0].shape)]),
    **dict.fromkeys(("Add", "Sub", "Mul", "Pow", "Min", "Max", "PRelu"), _elementwise()),
    **dict.fromkeys(_COMPARISONS, _elementwise(BOOL)),
    **dict.fromkeys(("Div", "Mod"), _divide),
    "Where": _elementwise(of=1),
    "Cast": _cast,
    "Constant": _constant,
    "Shape": _shape,
    "ConstantOfShape": _constant_of_shape,
    "Expand": lambda call: [call.made(call.broadcast(call[0].shape, tuple(call.numbers(1))))],
    "Tile": _tile,
    "Range": _range,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": lambda call: [call.made(call[1].shape)],
    "ScatterElements": _scatter,
    "Pad": _pad,
}
"""Rules by operator."""
