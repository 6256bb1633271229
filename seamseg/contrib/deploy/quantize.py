"""Static int8 quantisation of an exported ONNX network (docs/how-to/int8.md).

Convolutions and linear layers get int8 weights, one scale an output channel, and uint8 inputs and outputs, one scale a
tensor. The result is a standard ONNX graph: `QuantizeLinear` and `DequantizeLinear` around float operators, which an
engine fuses into integer kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from seamseg.contrib.deploy.onnx import users_of
from seamseg.contrib.exported.onnx_engines import onnxruntime_settings
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import write_atomically
from seamseg.utils.progress import progress

FLOAT_LAYERS = (
    "rpn_head.conv_obj.",
    "rpn_head.conv_bbx.",
    "roi_head.roi_",
    "sem_head.conv_sem.",
    "net.cls.",
)
"""Layers that stay in float, by their place in the network, `net.` in front: those that compute the outputs."""
_WEIGHTED = ("Conv", "Gemm")
_UNWEIGHTED = ("LeakyRelu", "Relu", "Add", "MaxPool", "Resize", "Concat")
"""Operators that engines run in int8 between two quantised layers."""
LEVELS = 255
"""Steps of the range of activations."""
_BINS = 8192
_FRACTIONS = np.linspace(0.04, 1.0, 25)
"""Ends of a range that are tried, as parts of the observed extremes."""


class Selection(NamedTuple):
    """What is quantised; `slopes` of the leaky ReLU, or None, behind each tensor that is observed."""

    weighted: list[str]
    unweighted: list[str]
    slopes: dict[str, float | None]


class Histogram:
    """Histogram of a tensor over many runs, with the exact extremes; its symmetric interval is doubled as needed."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.limit = 0.0
        self.low, self.high = 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        """Count finite values of any shape."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not math.isfinite(low) or not math.isfinite(high):
            raise SeamsegError("int8: the network computes values that are not finite for a calibration image")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high, 1e-12)
        if not self.limit:
            self.limit = largest
        while largest > self.limit:
            merged, quarter = self.counts.reshape(-1, 2).sum(axis=1), _BINS // 4
            self.counts = np.pad(merged, quarter)
            self.limit *= 2
        scale = _BINS / (2 * self.limit)
        index = ((values.reshape(-1) + np.float32(self.limit)) * np.float32(scale)).astype(np.int32)
        np.clip(index, 0, _BINS - 1, out=index)
        self.counts += np.bincount(index, minlength=_BINS)

    def best_range(self, slope: float | None = None) -> tuple[float, float]:
        """Return the ends of 8-bit values of least square error, after the leaky ReLU of `slope` behind them."""
        (used,) = np.nonzero(self.counts)
        if not used.size:
            return 0.0, 0.0
        values = (used + 0.5) * (2 * self.limit / _BINS) - self.limit
        values = np.clip(values, self.low, self.high)
        weights = self.counts[used] / self.counts.sum()

        def activate(x: np.ndarray) -> np.ndarray:
            return x if slope is None else np.where(x < 0, x * slope, x)

        wanted = activate(values)

        def error(low: float, high: float) -> float:
            step = max((high - low) / LEVELS, 1e-12)
            zero = np.rint(-low / step)
            got = (np.clip(np.rint(values / step) + zero, 0, LEVELS) - zero) * step
            return float(weights @ np.square(activate(got) - wanted))

        low, high = self.low, self.high
        for _ in range(2):  # one end after the other
            high = min((self.high * part for part in _FRACTIONS), key=lambda end: error(low, end))
            low = min((self.low * part for part in _FRACTIONS), key=lambda end: error(end, high))
        return low, high


def select(model: onnx.ModelProto) -> Selection:
    """Select the nodes to quantise."""
    weights = {tensor.name for tensor in model.graph.initializer}
    users = users_of(model.graph)
    weighted, unweighted, quantised = [], [], dict[str, None]()
    for node in model.graph.node:  # in topological order
        if node.op_type in _WEIGHTED and node.input[1] in weights:
            if any(part in node.input[1] for part in FLOAT_LAYERS):
                continue
            weighted.append(node.name)
        elif node.op_type in _UNWEIGHTED and all(name in quantised for name in _activations(node)):
            unweighted.append(node.name)
        else:
            continue
        quantised.update(dict.fromkeys((*_activations(node), node.output[0])))
    slopes: dict[str, float | None] = {}
    for name in quantised:
        # in networks of free size, nodes that measure a map take no values of it
        readers = [node for node in users.get(name, []) if node.op_type != "Shape"]
        found = {node.attribute[0].f if node.op_type == "LeakyRelu" else None for node in readers}
        slopes[name] = found.pop() if len(found) == 1 else None
    return Selection(weighted, unweighted, slopes)


def _activations(node: onnx.NodeProto) -> list[str]:
    return list(node.input) if node.op_type in ("Add", "Concat") else [node.input[0]]


def replace_upsampling(model: onnx.ModelProto) -> None:
    """Make transposed convolutions without overlap 1x1 convolutions, which have int8 kernels, and a move."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = users_of(graph)
    for node in list(graph.node):
        if node.op_type != "ConvTranspose" or any(name not in weights for name in node.input[1:]):
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        (inputs, _, *window), strides = weights[node.input[1]].dims, list(attributes["strides"].ints)
        side = window[0]
        padded = any(any(attributes[name].ints) for name in ("pads", "output_padding") if name in attributes)
        grouped = "group" in attributes and attributes["group"].i != 1
        if padded or grouped or not [side, side] == window == strides:
            continue
        kernel = numpy_helper.to_array(weights[node.input[1]])  # I x O x side x side
        weights[node.input[1]].CopyFrom(
            numpy_helper.from_array(
                np.ascontiguousarray(kernel.transpose(1, 2, 3, 0).reshape(-1, inputs, 1, 1)), node.input[1]
            )
        )
        for name in node.input[2:]:
            bias = np.repeat(numpy_helper.to_array(weights[name]), side**2)
            weights[name].CopyFrom(numpy_helper.from_array(bias, name))
        followers = users.get(node.output[0], [])
        last = followers[0] if [user.op_type for user in followers] == ["LeakyRelu"] else node
        result, cells = last.output[0], f"{node.name}_cells"
        changed = {*node.input[1:], *node.output}
        for value in [value for value in graph.value_info if value.name in changed]:
            graph.value_info.remove(value)
        node.CopyFrom(helper.make_node("Conv", node.input, node.output, node.name, kernel_shape=[1, 1]))
        last.output[0] = cells
        move = helper.make_node("DepthToSpace", [cells], [result], f"{node.name}_move", blocksize=side, mode="CRD")
        graph.node.insert(list(graph.node).index(last) + 1, move)


def _separate_weights(graph: onnx.GraphProto) -> None:
    """Give each layer its own weights: ONNX Runtime cannot load shared ones with kernels that do not saturate."""
    weights, used = {tensor.name: tensor for tensor in graph.initializer}, set[str]()
    for node in graph.node:
        if node.op_type not in _WEIGHTED or (name := node.input[1]) not in weights:
            continue
        if name in used:
            own = graph.initializer.add()
            own.CopyFrom(weights[name])
            own.name = node.input[1] = f"{name}_{node.name}"
        used.add(name)


def observe(
    model: onnx.ModelProto, tensors: Iterable[str], samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, Histogram]:
    """Run the float network on samples, its inputs by name; return the histogram of each tensor."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name: value for value in model.graph.output}
    names = [name for name in tensors if name not in inputs]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    # of the maps of the mask branch only the rows of detections count
    counted = ["count"] if "mask_logits" in outputs else []
    others = _ancestors(model.graph, (name for name in outputs if name != "mask_logits"))
    of_masks = _ancestors(model.graph, ["mask_logits"]) - others
    rows = outputs["mask_logits"].type.tensor_type.shape.dim[0].dim_value if counted else 0
    session = onnxruntime.InferenceSession(
        observed.SerializeToString(), onnxruntime_settings(), ["CPUExecutionProvider"]
    )
    histograms = {name: Histogram() for name in tensors}
    for sample in samples:
        found = dict(zip((*names, *counted), session.run([*names, *counted], dict(sample))))
        for name, histogram in histograms.items():
            values = found[name] if name in found else sample[name]
            if name in of_masks and values.ndim == 4 and values.shape[0] == rows:
                values = values[: int(found["count"])]
            histogram.add(values)
    return histograms


def _ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """Return the tensors from which others are computed, and these."""
    found = set(names)
    for node in reversed(graph.node):  # in topological order
        if not found.isdisjoint(node.output):
            found.update(node.input)
    return found


def quantise(model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]]) -> onnx.ModelProto:
    """Return a float32 network with `QuantizeLinear` and `DequantizeLinear` around its layers; `samples` by name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    replace_upsampling(copy)
    _separate_weights(copy.graph)
    selection = select(copy)
    if not selection.weighted:
        raise InputError("the network has no convolution or linear layer to quantise")
    ranges, histograms = {}, observe(copy, selection.slopes, samples)
    for name, histogram in progress(histograms.items(), len(histograms), "ranges"):
        if not histogram.counts.any():
            raise InputError(f"{name} has no range: the network finds no objects in the images: take other or more")
        ranges[name] = tuple(np.asarray(end, np.float32) for end in histogram.best_range(selection.slopes[name]))
    quantizer = QDQQuantizer(
        copy,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
        nodes_to_quantize=[*selection.weighted, *selection.unweighted],
        nodes_to_exclude=[],
        op_types_to_quantize=[*_WEIGHTED, *_UNWEIGHTED],
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    made: onnx.ModelProto = quantizer.model.model
    # the shapes of int8 maps are taken from them: else engines convert whole maps to float only for their shapes
    floats = {node.output[0]: node for node in made.graph.node if node.op_type == "DequantizeLinear"}
    for node in made.graph.node:
        if node.op_type == "Shape" and node.input[0] in floats:
            node.input[0] = floats[node.input[0]].input[0]
    needed = {*users_of(made.graph), *(value.name for value in made.graph.output)}
    for name, node in floats.items():
        if name not in needed:
            made.graph.node.remove(node)
    return made


def quantise_file(source: Path, target: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> ExportedMetadata:
    """Quantise a float32 file of `write_onnx` to `target`, which may be the same; return the new metadata."""
    model = onnx.load(source)
    texts = {prop.key: prop.value for prop in model.metadata_props}
    stated = ExportedMetadata.from_json(texts[METADATA_KEY], str(source))
    made = quantise(model, samples)
    metadata = replace(stated, precision="int8")
    onnx.helper.set_model_props(made, {METADATA_KEY: metadata.to_json()})
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    onnx.checker.check_model(made)
    write_atomically(target, made.SerializeToString())
    return metadata
