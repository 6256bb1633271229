"""Static int8 quantisation of an exported ONNX network (docs/how-to/int8.md).

Convolutions and linear layers get int8 weights, one scale an output channel, and uint8 inputs and outputs, one scale a
tensor. The result is a standard ONNX graph: `QuantizeLinear` and `DequantizeLinear` around float operators, which an
engine fuses into integer kernels.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seamseg.data.folder import DatasetFolder
from seamseg.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.utils.errors import InputError, SeamsegError, option
from seamseg.utils.files import write_atomically
from seamseg.validation.evaluate import check_same_classes

if TYPE_CHECKING:
    import onnx

FLOAT_LAYERS = ("rpn_head.scores.", "roi_head.roi_", "sem_head.classifiers.", "sem_head.conv_sem.", "net.cls.")
"""Layers that stay in float, by their place in the network: those that compute the outputs."""
_WEIGHTED = ("Conv", "Gemm")
_UNWEIGHTED = ("LeakyRelu", "Relu", "Add", "MaxPool", "Resize", "Concat")
"""Operators that engines run in int8 between two quantised layers."""
INT8_KERNELS = ("QLinearConv", "QGemm")
"""Operators of ONNX Runtime that compute convolutions and linear layers in int8."""
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
        if not math.isfinite(low) or not math.isfinite(high):
            raise SeamsegError("int8: the network computes values that are not finite for a calibration picture")
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
    return Selection(tuple(weighted), tuple(unweighted), {name: _slope(users.get(name, [])) for name in quantised})


def _activations(node: onnx.NodeProto) -> list[str]:
    """Return the names of the inputs that are neither weights nor sizes."""
    return list(node.input) if node.op_type in ("Add", "Concat") else [node.input[0]]


def _slope(users: list[onnx.NodeProto]) -> float | None:
    slopes = {node.attribute[0].f if node.op_type == "LeakyRelu" else None for node in users}
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
        changed = {*node.input[1:], *node.output}
        for value in [value for value in graph.value_info if value.name in changed]:
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
    outputs = {value.name: value for value in model.graph.output}
    names = [name for name in tensors if name not in inputs]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    # of the maps of the mask branch only the rows of detections count
    counted = ["count"] if "mask_logits" in outputs else []
    rows = outputs["mask_logits"].type.tensor_type.shape.dim[0].dim_value if counted else 0
    session = onnxruntime.InferenceSession(observed.SerializeToString(), _settings(), ["CPUExecutionProvider"])
    histograms = {name: Histogram() for name in tensors}
    for sample in samples:
        found = dict(zip((*names, *counted), session.run([*names, *counted], dict(sample))))
        for name, histogram in histograms.items():
            values = found[name] if name in found else sample[name]
            if values.ndim == 4 and values.shape[0] == rows > 1:
                values = values[: int(found["count"])]
            histogram.add(values)
    return histograms


def _settings() -> Any:
    """Return options for sessions of ONNX Runtime that print no warnings."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return settings


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
    SeamsegError
        if ONNX Runtime would compute a quantised layer in float
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
    ranges = _ranges(observe(copy, selection.slopes, samples), selection)
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
    operators = executed_operators(made)
    found = sum(operators[name] for name in INT8_KERNELS)
    if found < len(selection.weighted):
        raise SeamsegError(
            f"ONNX Runtime computes {found} of {len(selection.weighted)} quantised layers in int8, the others in float"
        )
    return made


def _ranges(histograms: Mapping[str, Histogram], selection: Selection) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if not any(histogram.counts.any() for histogram in histograms.values()):
        raise InputError("there is no picture to calibrate with")
    ranges = {}
    for name, histogram in histograms.items():
        if not histogram.counts.any():
            raise InputError(
                f"the network finds no objects in the calibration pictures, so that {name} has no range: take other "
                "or more pictures"
            )
        low, high = histogram.best_range(selection.slopes[name])
        ranges[name] = (np.asarray(low, np.float32), np.asarray(high, np.float32))
    return ranges


def executed_operators(model: onnx.ModelProto) -> Counter[str]:
    """Return the operators that ONNX Runtime executes for a network on this CPU, with the number of each."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="seamseg-int8-") as folder:
        settings = _settings()
        settings.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        onnxruntime.InferenceSession(model.SerializeToString(), settings, ["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node)


def calibration_photos(data: str | Path, metadata: Metadata, split: str | None, count: int) -> list[Path]:
    """Return photos of a dataset folder to calibrate with, evenly spaced in the split.

    Parameters
    ----------
    data : dataset folder
    metadata : classes of the network
    split : name of the list; None for all images
    count : how many, or all if there are fewer

    Raises
    ------
    InputError
        if the count is not positive, the folder is broken, its classes are others, or it has no images
    """
    if count < 1:
        raise InputError(f"{option('calibrate', count)}: calibrate with at least one picture")
    folder = DatasetFolder(data)
    check_same_classes(metadata, "the network", folder.metadata, str(data))
    images = folder.split(split) if split is not None and split in folder.splits else folder.metadata.images
    if not images:
        raise InputError(f"{data}: has no images to calibrate with")
    chosen = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int))
    return [folder.image_path(images[number].id) for number in chosen]


def quantise_file(source: Path, target: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> ExportedMetadata:
    """Quantise an exported ONNX file; return the metadata of the new one.

    Parameters
    ----------
    source : float32 file of :func:`seamseg.deploy.onnx.write_onnx`
    target : file to write, atomically; may be the source
    samples : as for :func:`quantise`

    Raises
    ------
    InputError, SeamsegError
        as :func:`quantise`
    """
    import onnx

    used = 0

    def counted() -> Iterator[Mapping[str, np.ndarray]]:
        nonlocal used
        for sample in samples:
            used += 1
            yield sample

    model = onnx.load(source)
    text = next((prop.value for prop in model.metadata_props if prop.key == METADATA_KEY), None)
    if text is None:
        raise InputError(f"{source}: holds no metadata of seamseg: it was not written by `seamseg export`")
    stated = ExportedMetadata.from_json(text, str(source))
    made = quantise(model, counted())
    metadata = replace(stated, precision="int8", extra={**stated.extra, "calibration_pictures": used})
    onnx.helper.set_model_props(made, {METADATA_KEY: metadata.to_json()})
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    onnx.checker.check_model(made)
    write_atomically(target, made.SerializeToString())
    return metadata
