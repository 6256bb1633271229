"""Export to ONNX: one file, standard operators only.

Operators of this package are translated to those of ONNX that compute the same. NMS and ROI sampling become
NonMaxSuppression and RoiAlign; the pyramid levels form one map for it, each with a border of its outermost pixels, so
that all boxes are sampled by one operator without data-dependent shapes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript.onnx_opset import opset20

from seamseg.contrib.deploy.network import ExportNet, example_inputs, failures_in_one_line, trace
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.ops.fused import ACTIVATIONS
from seamseg.utils.errors import SeamsegError
from seamseg.utils.files import replacing
from seamseg.utils.output import quiet_logs

op: Any = opset20
_OPSET = 20
"""The lowest version of the operators with all that are used; engines lack the RoiAlign of 22."""
_MAX_BYTES = 2 << 30
_LOWEST = float(np.finfo(np.float32).min)


def write_onnx(net: ExportNet, target: Path, metadata: ExportedMetadata, size: tuple[int, int]) -> None:
    """Write a network, exported with `standard_ops`, as an ONNX file; `size` is that of the example that is traced."""
    with failures_in_one_line(f"{target}: this network cannot be exported to ONNX", net, metadata.size is None):
        program = trace(net, size, metadata.multiple, metadata.sides)
        # the exporter prints its steps and warns about what is no problem here
        silent = quiet_logs("torch.onnx", "onnxscript", "onnx_ir")
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), silent:
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                input_names=list(example_inputs(net, size)),
                output_names=list(net.output_names),
                opset_version=_OPSET,
                custom_translation_table=translations(),
                external_data=False,
                verbose=False,
            )
        assert made is not None
        # a property that makes a new object each time
        model = made.model_proto
        graph = model.graph
        # what the exporter notes about each node: stack traces with the paths of this machine
        for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph):
            del part.metadata_props[:]
            part.doc_string = ""
        _pool_samples(graph)
    model.producer_name, model.producer_version = "seamseg", metadata.version
    onnx.helper.set_model_props(model, {METADATA_KEY: metadata.to_json()})
    if (length := model.ByteSize()) >= _MAX_BYTES:
        raise SeamsegError(f"{target}: the network has {length / (1 << 30):.1f} GiB, an ONNX file can have 2 GiB")
    with failures_in_one_line(f"{target}: the exported network is no valid ONNX file"):
        onnx.checker.check_model(model, full_check=True)
    with replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString())


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return how the operators of this package are expressed in those of ONNX, for `torch.onnx.export`."""
    ours = torch.ops.seamseg
    return {
        torch.ops.seamseg_deploy.nms.default: _nms,
        ours.roi_sampling.default: _roi_sampling,
        ours.box_filter_pool.default: _box_filter_pool,
        ours.upsample_argmax.default: _upsample_argmax,
        ours.abn_transform.default: _abn_transform,
        torch.ops.aten._upsample_nearest_exact2d.vec: _upsample_nearest,
    }


def _pool_samples(graph: onnx.GraphProto) -> None:
    """Let RoiAlign average the samples that a pooling averages behind it: most of the samples are of the box branch."""
    users = users_of(graph)
    merged: set[str] = set()
    for node in graph.node:
        if node.op_type != "RoiAlign" or [user.op_type for user in users[node.output[0]]] != ["AveragePool"]:
            continue
        (pool,) = users[node.output[0]]
        asked = {a.name: onnx.helper.get_attribute_value(a) for a in pool.attribute}
        sampling = {a.name: a for a in node.attribute}
        side = asked["kernel_shape"][0]
        if asked["kernel_shape"] != [side, side] or asked["strides"] != [side, side] or any(asked.get("pads", [0])):
            continue
        sides = [sampling[name] for name in ("output_height", "output_width")]
        if any(value.i % side for value in sides):
            # the pooling drops the last samples, which RoiAlign cannot do
            continue
        for value in sides:
            value.i //= side
        sampling["sampling_ratio"].i *= side
        merged.update((node.output[0], pool.output[0]))
        node.output[0] = pool.output[0]
        graph.node.remove(pool)
    for value in [value for value in graph.value_info if value.name in merged]:
        graph.value_info.remove(value)


def users_of(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes that use each tensor, by its name."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return users


def _ints(*values: int) -> Any:
    return op.Constant(value=onnx.numpy_helper.from_array(np.array(values, np.int64)))


def _int(value: int) -> Any:
    return op.Constant(value=onnx.numpy_helper.from_array(np.array(value, np.int64)))


def _float(value: float) -> Any:
    return op.Constant(value=onnx.numpy_helper.from_array(np.array(value, np.float32)))


def _side(x: Any, axis: int) -> Any:
    """Return the length of an axis as a tensor `1`, also if it is free."""
    return op.Shape(x, start=axis, end=axis + 1)


def _nms(boxes: Any, scores: Any, threshold: float, most: int) -> tuple[Any, Any]:
    """Translate :meth:`seamseg.contrib.deploy.network.DetectionExport._nms`.

    NonMaxSuppression suppresses above its threshold, ours from it on: the float below it makes them equal. It does not
    define the order of its result: TopK orders the kept boxes, the lower index first among equal scores.
    """
    groups, number = (int(side) for side in scores.shape)
    below = float(max(np.nextafter(np.float32(threshold), np.float32(-1)), 0))
    chosen = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, _ints(1)), _int(most), _float(below), _float(_LOWEST))
    index = op.Add(op.Mul(op.Gather(chosen, _int(0), axis=1), _int(number)), op.Gather(chosen, _int(2), axis=1))
    flat = op.Reshape(scores, _ints(-1))
    nothing = op.Constant(value=onnx.numpy_helper.from_array(np.full(groups * number, -np.inf, np.float32)))
    kept_scores = op.ScatterElements(nothing, index, op.Gather(flat, index))
    best, kept = op.TopK(kept_scores, _ints(min(most, groups * number)))
    kept = op.Where(op.Less(best, _float(_LOWEST)), _int(-1), kept)
    if most > groups * number:
        kept = op.Pad(kept, _ints(0, most - groups * number), _int(-1))
    return kept, op.Squeeze(_side(chosen, 0))


def _roi_sampling(
    levels: Sequence[Any],
    boxes: Any,
    index: Any,
    level: Any,
    padded_size: Sequence[Any],
    height: int,
    width: int,
    nearest: bool = False,
    zero: bool = False,
) -> Any:
    """Translate :func:`seamseg.ops.roi_sampling.roi_features`: bilinear, with border padding.

    All levels are stacked into one map, in a frame of copies of their outermost pixels: that is the border padding, as
    samples of boxes inside the image are less than a pixel outside of their level.
    """
    assert not nearest and not zero, "networks sample their features bilinearly, with border padding"
    padded = op.Concat(*(_as_tensor(side) for side in padded_size), axis=0)
    parts, scales, offsets = [], [], []
    width_of_all, top = op.Add(_side(levels[0], 3), _ints(2)), _ints(0)
    for x in levels:
        framed = op.Pad(x, _ints(0, 0, 1, 1, 0, 0, 1, 1), mode="edge")
        missing = op.Sub(width_of_all, _side(framed, 3))
        parts.append(op.Pad(framed, op.Concat(_ints(0, 0, 0, 0, 0, 0, 0), missing, axis=0)))
        sides = op.Shape(x, start=2, end=4)
        scales.append(op.Div(op.Cast(sides, to=1), op.Cast(padded, to=1)))
        offsets.append(op.Cast(op.Add(op.Concat(top, _ints(0), axis=0), _ints(1)), to=1))
        top = op.Add(top, _side(framed, 2))
    stacked = op.Concat(*parts, axis=2) if len(parts) > 1 else parts[0]
    scale, offset = (
        op.Gather(op.Concat(*(op.Unsqueeze(row, _ints(0)) for row in rows), axis=0), level)
        for rows in (scales, offsets)
    )
    corners = [
        op.Add(op.Add(op.Mul(op.Sub(corner, _float(0.5)), scale), _float(0.5)), offset)
        for corner in (op.Slice(boxes, _ints(a), _ints(b), _ints(1)) for a, b in ((0, 2), (2, 4)))
    ]
    # ROI Align takes x before y
    rois = op.Gather(op.Concat(*corners, axis=1), _ints(1, 0, 3, 2), axis=1)
    return op.RoiAlign(
        stacked,
        rois,
        index,
        coordinate_transformation_mode="half_pixel",
        mode="avg",
        output_height=int(height),
        output_width=int(width),
        sampling_ratio=1,
        spatial_scale=1.0,
    )


def _as_tensor(side: Any) -> Any:
    """Return a side, which is a number or a scalar of the graph, as a tensor `1`."""
    return _ints(side) if isinstance(side, int) else op.Reshape(side, _ints(1))


def _box_filter_pool(x: Any, height: int, width: int) -> Any:
    """Translate `box_filter_pool`: averages are products with band matrices, cheaper than large windows."""
    rows, columns = _averages(x, 2, height), _averages(x, 3, width)
    return op.MatMul(op.MatMul(rows, x), op.Transpose(columns, perm=[1, 0]))


def _averages(x: Any, axis: int, window: int) -> Any:
    """Return the matrix `n x n` that averages the pixels of the window of each pixel along an axis of length n."""
    length = op.Squeeze(_side(x, axis))
    window = op.Min(_int(window), length)
    before = op.Div(op.Sub(window, _int(1)), _int(2))
    place = op.Range(_int(0), length, _int(1))
    # replicate padding: windows that would be partly outside are those of the nearest pixel inside
    first = op.Min(op.Max(op.Sub(place, before), _int(0)), op.Sub(length, window))
    after = op.Sub(op.Unsqueeze(place, _ints(0)), op.Unsqueeze(first, _ints(1)))
    inside = op.And(op.GreaterOrEqual(after, _int(0)), op.Less(after, window))
    return op.Div(op.Cast(inside, to=1), op.Cast(window, to=1))


def _upsample_argmax(logits: Any, padded_height: Any, padded_width: Any, height: Any, width: Any) -> Any:
    sizes = op.Concat(_ints(1), _side(logits, 0), _as_tensor(padded_height), _as_tensor(padded_width), axis=0)
    large = op.Resize(
        op.Unsqueeze(logits, _ints(0)), None, None, sizes, mode="linear", coordinate_transformation_mode="half_pixel"
    )
    classes = op.ArgMax(op.Squeeze(large, _ints(0)), axis=0, keepdims=0)
    if all(isinstance(side, int) for side in (height, width)) and (height, width) == (padded_height, padded_width):
        return classes
    ends = op.Concat(_as_tensor(height), _as_tensor(width), axis=0)
    return op.Slice(classes, _ints(0, 0), ends, _ints(0, 1))


def _upsample_nearest(x: Any, size: Sequence[Any], scales: Any) -> Any:
    """Translate `nearest-exact` of `interpolate`, which torch would decompose into an indexing of all pixels."""
    sizes = op.Concat(_side(x, 0), _side(x, 1), *(_as_tensor(side) for side in size), axis=0)
    return op.Resize(
        x,
        None,
        None,
        sizes,
        mode="nearest",
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_ceil",
    )


def _abn_transform(x: Any, mean: Any, scale: Any, bias: Any, residual: Any, activation: int, parameter: float) -> Any:
    """Translate :func:`seamseg.ops.abn_steps.abn_transform`, of norms that are not folded."""
    axes = _ints(*range(1, len(x.shape) - 1))
    mean, scale, bias = (op.Unsqueeze(values, axes) for values in (mean, scale, bias))
    z = op.Add(op.Mul(op.Sub(x, mean), scale), bias)
    if residual is not None:
        z = op.Add(z, residual)
    name = ACTIVATIONS[activation]
    if name == "identity":
        return z
    if name == "relu":
        return op.Relu(z)
    return op.Elu(z, alpha=parameter) if name == "elu" else op.LeakyRelu(z, alpha=parameter)
