"""Rules of the layers of networks in ONNX, see :mod:`seamseg.inference.onnx_graph.call`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seamseg.formats.onnx_file import INT64
from seamseg.inference.onnx_graph.call import LARGEST, Call, Rule, Sized


def _resize(call: Call) -> list[Sized]:
    shape = call[0].shape
    if (
        call.has(1)
        or "axes" in call.node.attributes
        or call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise call.wrong("resizes a part")
    call.work = 0
    if call.has(3):
        sides, exact = call.numbers(3), True
    else:
        scales = call[2].value
        if scales is None or scales.size != len(shape) or not np.all(np.isfinite(scales)) or scales.max() > 1 << 16:
            raise call.wrong("has scales that are not known")
        exact = bool(np.all(scales == np.floor(scales)))
        # the product may be rounded up
        sides = [int(side * float(scale)) + (not exact) for side, scale in zip(shape, scales.reshape(-1))]
    if len(sides) != len(shape):
        raise call.wrong(f"has {len(sides)} sides for {len(shape)}")
    made = call.made(sides, exact=exact)
    call.work = 16 * made.count
    return [made]


def _window(call: Call, kernel: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Return strides, paddings `(begin, end)` and dilations of a convolution or pooling, by axis."""
    axes = len(kernel)
    strides, dilations = call.attribute("strides", [1] * axes), call.attribute("dilations", [1] * axes)
    pads = call.attribute("pads", [0] * 2 * axes)
    stated = call.attribute("kernel_shape", list(kernel))
    if call.attribute("auto_pad", "NOTSET") != "NOTSET" or len(call[0].shape) != axes + 2 or axes not in (1, 2):
        raise call.wrong("is not of one or two axes, or with another padding")
    if list(kernel) != stated or len(strides) != axes or len(dilations) != axes or len(pads) != 2 * axes:
        raise call.wrong("has attributes of other lengths")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0 or max(*kernel, *strides, *dilations, *pads) > LARGEST:
        raise call.wrong("has windows, steps or paddings out of range")
    return strides, list(zip(pads[:axes], pads[axes:])), dilations


def _windows(call: Call, kernel: Sequence[int]) -> tuple[list[int], bool]:
    """Return the sides of the result of a convolution or pooling, and whether they are exact."""
    strides, pads, dilations = _window(call, kernel)
    sides = call[0].shape[2:]
    spans = zip(sides, pads, dilations, kernel)
    free = [side + sum(pad) - dilation * (size - 1) - 1 for side, pad, dilation, size in spans]
    if min(free) < 0:
        raise call.wrong("has a window larger than its map")
    if not call.attribute("ceil_mode", 0):
        return [room // step + 1 for room, step in zip(free, strides)], True
    last = [-(-room // step) for room, step in zip(free, strides)]
    # engines differ in whether a window that starts beyond the map counts
    exact = all(n * step < begin + side for n, step, (begin, _), side in zip(last, strides, pads, sides))
    return [n + 1 for n in last], exact


def _convolution(call: Call) -> list[Sized]:
    x, weight, group = call[0].shape, call[1].shape, call.attribute("group", 1)
    # those of one axis are of channel attention
    if (
        len(weight) not in (3, 4)
        or group < 1
        or x[1:2] != (weight[1] * group,)
        or weight[0] % group
        or not call[1].exact
    ):
        raise call.wrong("has weights of another shape")
    sides, exact = _windows(call, weight[2:])
    made = call.made((x[0], weight[0], *sides), exact=exact)
    call.work = made.count * math.prod(weight[1:])
    return [made]


def _transposed_convolution(call: Call) -> list[Sized]:
    x, weight, group = call[0].shape, call[1].shape, call.attribute("group", 1)
    if len(weight) != 4 or group < 1 or x[1:2] != (weight[0],) or "output_shape" in call.node.attributes:
        raise call.wrong("has weights of another shape")
    strides, pads, dilations = _window(call, weight[2:])
    extra = call.attribute("output_padding", [0, 0])
    if len(extra) != 2 or not all(0 <= more < max(step, 2) for more, step in zip(extra, strides)):
        raise call.wrong("has other paddings")
    sides = [
        step * (side - 1) + more + dilation * (size - 1) + 1 - sum(pad)
        for side, step, more, dilation, size, pad in zip(x[2:], strides, extra, dilations, weight[2:], pads)
    ]
    call.work = math.prod(x) * math.prod(weight[1:])
    call.scratch = 4 * x[0] * math.prod(x[2:]) * math.prod(weight[1:]) * group
    return [call.made((x[0], weight[1] * group, *sides))]


def _pool(call: Call) -> list[Sized]:
    kernel = call.attribute("kernel_shape", [])
    sides, exact = _windows(call, kernel)
    made = call.made((*call[0].shape[:2], *sides), exact=exact)
    call.work = made.count * math.prod(kernel)
    return [made, replace(made, dtype=INT64)]


def _global_pool(call: Call) -> list[Sized]:
    shape = call[0].shape
    return [call.made((*shape[:2], *(1,) * len(shape[2:])))]


def _product(call: Call) -> list[Sized]:
    a, b = call[0].shape, call[1].shape
    if min(len(a), len(b)) < 2:
        raise call.wrong("multiplies vectors")
    if a[-1] != b[-2] and call[0].exact and call[1].exact:
        raise call.wrong(f"multiplies {list(a)!s:.40} by {list(b)!s:.40}")
    made = call.made((*call.broadcast(a[:-2], b[:-2]), a[-2], b[-1]))
    call.work = made.count * max(a[-1], b[-2])
    return [made]


def _einsum(call: Call) -> list[Sized]:
    """Return the result of sums of products of two tensors, such as `ij,jk->ik`."""
    match = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]*)", call.attribute("equation", "").replace(" ", ""))
    if match is None or len(call.inputs) != 2 or any(len(set(term)) != len(term) for term in match.groups()):
        raise call.wrong("has another equation than of the axes of two tensors")
    sides: dict[str, int] = {}
    for index, term in enumerate(match.groups()[:2]):
        shape = call[index].shape
        if len(shape) != len(term) or any(sides.setdefault(name, side) != side for name, side in zip(term, shape)):
            raise call.wrong("combines other sides than its equation")
    if not sides.keys() >= set(match[3]) or not (call[0].exact and call[1].exact):
        raise call.wrong("has axes of unknown sides")
    made = call.made([sides[name] for name in match[3]])
    call.work = math.prod(sides.values())
    # engines transpose the inputs and the result for a product of matrices
    call.scratch = call[0].nbytes + call[1].nbytes + made.nbytes
    return [made]


def _linear(call: Call) -> list[Sized]:
    if len(call[0].shape) != 2 or len(call[1].shape) != 2:
        raise call.wrong("multiplies other than matrices")
    a, b = (
        call[index].shape[::-1] if call.attribute(name, 0) else call[index].shape
        for index, name in enumerate(("transA", "transB"))
    )
    if a[1] != b[0] and call[0].exact and call[1].exact:
        raise call.wrong(f"multiplies {list(a)!s:.40} by {list(b)!s:.40}")
    made = call.made((a[0], b[1]))
    call.work = made.count * max(a[1], b[0])
    return [made]


def _reduce(dtype: int | None = None) -> Rule:
    def rule(call: Call) -> list[Sized]:
        shape = call[0].shape
        if "axis" in call.node.attributes or call.node.op.startswith("Arg"):
            axes: list[int] | None = [call.axis(call.attribute("axis", 0), len(shape))]
        else:
            axes = call.axes(1, len(shape))
        if not axes:
            axes = [] if call.attribute("noop_with_empty_axes", 0) else list(range(len(shape)))
        keep = call.attribute("keepdims", 1)
        sides = [1 if axis in axes else side for axis, side in enumerate(shape) if keep or axis not in axes]
        call.work = call[0].count
        return [call.made(sides, dtype)]

    return rule


def _top(call: Call) -> list[Sized]:
    shape = list(call[0].shape)
    axis = call.axis(call.attribute("axis", -1), len(shape))
    count = call[1].value
    # it cannot be more than there are
    known = count is not None and 0 <= int(count.reshape(-1)[0]) <= shape[axis]
    call.work = 32 * call[0].count
    shape[axis] = int(count.reshape(-1)[0]) if known and count is not None else shape[axis]
    made = call.made(shape, exact=known)
    return [made, replace(made, dtype=INT64)]


def _suppression(call: Call) -> list[Sized]:
    boxes, scores = call[0].shape, call[1].shape
    if len(boxes) != 3 or len(scores) != 3 or boxes[:2] != (scores[0], scores[2]) or boxes[2] != 4:
        raise call.wrong("has boxes and scores of other shapes")
    most = call[2].value if call.has(2) else np.zeros(1, np.int64)
    each = scores[2] if most is None else min(max(0, int(most.reshape(-1)[0])), scores[2])
    call.work = scores[0] * scores[1] * scores[2] * max(each, 32)
    columns = tuple((0, max(side - 1, 0)) for side in scores)
    return [replace(call.made((scores[0] * scores[1] * each, 3), INT64, exact=False), columns=columns)]


def _regions(call: Call) -> list[Sized]:
    height, width, ratio = (
        call.attribute(*pair) for pair in (("output_height", 1), ("output_width", 1), ("sampling_ratio", 0))
    )
    x, boxes, index = (call[place].shape for place in range(3))
    if ratio < 1 or min(height, width) < 1 or max(height, width, ratio) > 1 << 10:
        # with a ratio of 0 the boxes decide how many samples there are
        raise call.wrong("has no fixed number of samples")
    if len(x) != 4 or len(boxes) != 2 or boxes[1] != 4 or index != boxes[:1]:
        raise call.wrong("has boxes of another shape")
    made = call.made((boxes[0], x[1], height, width))
    call.work = 8 * made.count * ratio * ratio
    call.scratch = 64 * height * width * ratio * ratio * boxes[0]
    return [made]


def _grid_sample(call: Call) -> list[Sized]:
    x, grid = call[0].shape, call[1].shape
    if len(x) != 4 or len(grid) != 4 or grid[0] != x[0] or grid[3] != 2:
        raise call.wrong("samples a map at places of another shape")
    modes = call.attribute("mode", "linear"), call.attribute("padding_mode", "zeros")
    if modes not in (("linear", "zeros"), ("bilinear", "zeros")):
        # engines check each place for zeros, and need not for other paddings
        raise call.wrong("samples with another padding or interpolation")
    made = call.made((*x[:2], *grid[1:3]))
    call.work = 16 * made.count
    return [made]


def _depth_to_space(call: Call) -> list[Sized]:
    block, shape = call.attribute("blocksize", 1), call[0].shape
    if len(shape) != 4 or block < 1 or shape[1] % (block * block):
        raise call.wrong(f"has blocks of {block}")
    return [call.made((shape[0], shape[1] // block // block, shape[2] * block, shape[3] * block))]


def _space_to_depth(call: Call) -> list[Sized]:
    block, shape = call.attribute("blocksize", 1), call[0].shape
    if len(shape) != 4 or block < 1 or shape[2] % block or shape[3] % block:
        raise call.wrong(f"has blocks of {block}")
    return [call.made((shape[0], shape[1] * block * block, shape[2] // block, shape[3] // block))]


def _normalised(call: Call) -> list[Sized]:
    # mean and deviation are further results in some versions
    return [call.made(call[0].shape) for _ in call.node.outputs]


LAYERS: dict[str, Rule] = {
    "Resize": _resize,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    "MatMul": _product,
    "Einsum": _einsum,
    "Gemm": _linear,
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"), _reduce()
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce(INT64)),
    "TopK": _top,
    "NonMaxSuppression": _suppression,
    "RoiAlign": _regions,
    "GridSample": _grid_sample,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "QuantizeLinear": lambda call: [call.made(call[0].shape, call[2].dtype if call.has(2) else 2)],
    "DequantizeLinear": lambda call: [call.made(call[0].shape, call[1].dtype)],
    **dict.fromkeys(
        ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"), _normalised
    ),
}
"""Rules by operator."""
