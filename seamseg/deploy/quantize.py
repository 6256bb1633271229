"""Static int8 quantisation of an exported ONNX network (docs/how-to/int8.md).

Convolutions and linear layers get int8 weights, one scale an output channel, and uint8 inputs and outputs, one scale a
tensor. The result is a standard ONNX graph: `QuantizeLinear` and `DequantizeLinear` around float operators, which an
engine fuses into integer kernels.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seamseg.utils.errors import InputError

if TYPE_CHECKING:
    import onnx

FLOAT_LAYERS = ("rpn_head.scores.", "roi_head.roi_", "sem_head.classifiers.", "sem_head.conv_sem.")
"""Layers that stay in float, by their place in the network: those that compute the outputs."""
_WEIGHTED = ("Conv", "Gemm")
_LAYOUT = ("Reshape", "Transpose")
_UNWEIGHTED = ("LeakyRelu", "Relu", "Add", "MaxPool", "Resize", "Concat", *_LAYOUT)
"""Operators that engines run in int8 between two quantised layers."""
_INT8_KERNELS = ("QLinearConv", "QGemm")
_BINS = 8192
_LEVELS = 255
_FRACTIONS = np.linspace(0.04, 1.0, 25)
"""Ends of a range that are tried, as parts of the observed extremes."""


class Histogram:
    """Histogram of the values of a tensor over many runs, with the exact extremes.

    The bins cover a symmetric interval, which is doubled, and pairs of bins merged, when a value lies outside.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.limit = 0.0
        self.low, self.high = 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        """Count finite values of any shape."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high, 1e-12)
        if not self.limit:
            self.limit = largest
        while largest > self.limit:
            self._double()
        scale = _BINS / (2 * self.limit)
        index = ((values.reshape(-1) + np.float32(self.limit)) * np.float32(scale)).astype(np.int32)
        np.clip(index, 0, _BINS - 1, out=index)
        self.counts += np.bincount(index, minlength=_BINS)

    def _double(self) -> None:
        quarter = _BINS // 4
        merged = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = np.zeros_like(self.counts)
        self.counts[quarter : quarter + _BINS // 2] = merged
        self.limit *= 2

    def best_range(self, slope: float | None = None) -> tuple[float, float]:
        """Return the ends of the range of 8-bit values with the least mean square error.

        Parameters
        ----------
        slope : of the leaky ReLU that all users of the tensor apply first; its result is what counts. Negative values
            then hardly do, and most of the 255 steps go to the positive ones. None if there is none
        """
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
            step = max((high - low) / _LEVELS, 1e-12)
            zero = np.rint(-low / step)
            got = (np.clip(np.rint(values / step) + zero, 0, _LEVELS) - zero) * step
            return float(weights @ np.square(activate(got) - wanted))

        low, high = self.low, self.high
        for _ in range(2):  # one end after the other
            high = min((self.high * part for part in _FRACTIONS), key=lambda end: error(low, end))
            low = min((self.low * part for part in _FRACTIONS), key=lambda end: error(end, high))
        return low, high


@dataclass(frozen=True)
class Selection:
    """What of a graph is quantised.

    Attributes
    ----------
    weighted : names of the convolutions and linear layers
    unweighted : names of the operators between them
    slopes : the tensors to observe, each with the slope of the leaky ReLU that all its users are, or None
    """

    weighted: tuple[str, ...]
    unweighted: tuple[str, ...]
    slopes: Mapping[str, float | None]


def select(model: onnx.ModelProto, keep_float: Iterable[str] = FLOAT_LAYERS) -> Selection:
    """Select the nodes to quantise.

    Parameters
    ----------
    model : float32 network
    keep_float : layers whose weight has one of these in its name stay in float
    """
    keep_float = tuple(keep_float)
    weights = {tensor.name for tensor in model.graph.initializer}
    users = _users(model.graph)
    weighted, unweighted, quantised = [], [], dict[str, None]()
    for node in model.graph.node:  # in topological order
        if node.op_type in _WEIGHTED and node.input[1] in weights:
            if any(part in node.input[1] for part in keep_float):
                continue
            weighted.append(node.name)
        elif node.op_type in _UNWEIGHTED and all(name in quantised for name in _activations(node)):
            unweighted.append(node.name)
        else:
            continue
        quantised.update(dict.fromkeys((*_activations(node), node.output[0])))
    return Selection(tuple(weighted), tuple(unweighted), {name: _slope(name, users) for name in quantised})


def _activations(node: onnx.NodeProto) -> list[str]:
    """Return the names of the inputs that are neither weights nor sizes."""
    return list(node.input) if node.op_type in ("Add", "Concat") else [node.input[0]]


def _slope(name: str, users: Mapping[str, list[onnx.NodeProto]]) -> float | None:
    slopes = set()
    for node in users.get(name, []):
        if node.op_type in _LAYOUT:
            slopes.add(_slope(node.output[0], users))
        else:
            slopes.add(node.attribute[0].f if node.op_type == "LeakyRelu" else None)
    return slopes.pop() if len(slopes) == 1 else None


def replace_upsampling(model: onnx.ModelProto) -> None:
    """Replace transposed convolutions whose windows do not overlap by 1x1 convolutions, which have int8 kernels.

    The result is the same: a convolution to all cells of a window, and the activation if one follows; then the channels
    are moved to the cells.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = _users(graph)
    for node in list(graph.node):
        side = _window(node, weights)
        if side is None:
            continue
        inputs = weights[node.input[1]].dims[0]
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
        stale = [value for value in graph.value_info if value.name == node.output[0]]
        for value in stale:  # of the old shape
            graph.value_info.remove(value)
        node.CopyFrom(helper.make_node("Conv", node.input, node.output, node.name, kernel_shape=[1, 1]))
        last.output[0] = cells
        move = helper.make_node("DepthToSpace", [cells], [result], f"{node.name}_move", blocksize=side, mode="CRD")
        graph.node.insert(list(graph.node).index(last) + 1, move)


def _users(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return users


def _window(node: onnx.NodeProto, weights: Mapping[str, Any]) -> int | None:
    """Return the side of the square windows of a transposed convolution that do not overlap; None if they do."""
    if node.op_type != "ConvTranspose" or any(name not in weights for name in node.input[1:]):
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    kernel, strides = list(weights[node.input[1]].dims[2:]), list(attributes["strides"].ints)
    padded = any(any(attributes[name].ints) for name in ("pads", "output_padding") if name in attributes)
    grouped = "group" in attributes and attributes["group"].i != 1
    square = len(kernel) == 2 and kernel[0] == kernel[1] and kernel == strides
    return kernel[0] if square and not padded and not grouped else None


def observe(
    model: onnx.ModelProto, tensors: Iterable[str], samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, Histogram]:
    """Run the float network on samples; return the histogram of each tensor.

    Parameters
    ----------
    model : float32 network
    tensors : names
    samples : the inputs of the network by name, a dict a run
    """
    import onnx
    import onnxruntime

    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    inputs = {value.name for value in model.graph.input}
    known = {value.name for value in model.graph.output}
    names = [name for name in tensors if name not in inputs]
    for name in names:
        if name not in known:
            observed.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(observed.SerializeToString(), options, ["CPUExecutionProvider"])
    with_count = ["count"] if "count" in known else []
    histograms = {name: Histogram() for name in tensors}
    for sample in samples:
        found = dict(zip((*names, *with_count), session.run([*names, *with_count], dict(sample))))
        for name, histogram in histograms.items():
            histogram.add(found[name] if name in found else sample[name])
    return histograms


def quantise(
    model: onnx.ModelProto,
    samples: Iterable[Mapping[str, np.ndarray]],
    keep_float: Iterable[str] = FLOAT_LAYERS,
) -> onnx.ModelProto:
    """Return the network with `QuantizeLinear` and `DequantizeLinear` around its layers; the metadata stays.

    Parameters
    ----------
    model : float32 network, not changed
    samples : the inputs of the network by name, a dict a run
    keep_float : as for :func:`select`

    Raises
    ------
    InputError
        without a sample, or if the network has no layer to quantise
    """
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    replace_upsampling(copy)
    selection = select(copy, keep_float)
    if not selection.weighted:
        raise InputError("the network has no convolution or linear layer to quantise")
    histograms = observe(copy, selection.slopes, samples)
    if not any(histogram.counts.any() for histogram in histograms.values()):
        raise InputError("no picture to calibrate with")
    ranges = {}
    for name, histogram in histograms.items():
        low, high = histogram.best_range(selection.slopes[name])
        ranges[name] = (np.asarray(low, np.float32), np.asarray(high, np.float32))
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
    return quantizer.model.model


def int8_kernels(model: onnx.ModelProto) -> Counter[str]:
    """Return the operators that ONNX Runtime executes for a network on this CPU, and how many of each."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
