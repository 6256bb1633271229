"""Static int8 quantisation of an exported ONNX network (docs/how-to/int8.md).

Convolutions and linear layers get int8 weights, one scale an output channel, and uint8 inputs and outputs, one scale a
tensor. The result is a standard ONNX graph: `QuantizeLinear` and `DequantizeLinear` around float operators, which an
engine fuses into integer kernels.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from seamseg.contrib.deploy.onnx import users_of
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.models.quantised import FLOAT_LAYERS
from seamseg.ops.quantisation import LEVELS, Histogram
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import write_atomically
from seamseg.utils.progress import progress

_WEIGHTED = ("Conv", "Gemm")
_UNWEIGHTED = ("LeakyRelu", "Relu", "Add", "MaxPool", "Resize", "Concat")
"""Operators that engines run in int8 between two quantised layers."""
_SAME_RANGE = ("MaxPool", "Resize")
"""Those whose output has the range of the input."""
INT8_KERNELS = ("QLinearConv", "QGemm")
"""Operators of ONNX Runtime that compute convolutions and linear layers in int8."""


@dataclass(frozen=True)
class Selection:
    """Names of the layers and of the operators between them that are quantised.

    `slopes` has the tensors to observe, each with the slope of the leaky ReLU that all its users are, or None.
    """

    weighted: tuple[str, ...]
    unweighted: tuple[str, ...]
    slopes: Mapping[str, float | None]


Ranges = dict[str, tuple[float, float]]
"""The ends of the range of tensors, by name."""


def select(model: onnx.ModelProto, learned: Ranges | None = None) -> Selection:
    """Select the nodes to quantise: those with ranges from the training, if given; ranges of further ones are added."""
    weights = {tensor.name for tensor in model.graph.initializer}
    users = users_of(model.graph)
    weighted, unweighted, quantised = [], [], dict[str, None]()
    for node in model.graph.node:  # in topological order
        if learned is not None and not _has_ranges(node, learned):
            continue
        if node.op_type in _WEIGHTED and node.input[1] in weights:
            if any(part in node.input[1] for part in FLOAT_LAYERS):
                continue
            weighted.append(node.name)
        elif node.op_type in _UNWEIGHTED and all(name in quantised for name in _activations(node)):
            unweighted.append(node.name)
        else:
            continue
        quantised.update(dict.fromkeys((*_activations(node), node.output[0])))
    return Selection(tuple(weighted), tuple(unweighted), {name: _slope(users.get(name, [])) for name in quantised})


def _has_ranges(node: onnx.NodeProto, learned: Ranges) -> bool:
    """Return whether inputs and output of a node have learned ranges."""
    if node.op_type in _SAME_RANGE and node.input[0] in learned:
        learned[node.output[0]] = learned[node.input[0]]
    return all(name in learned for name in (*_activations(node), node.output[0]))


def _activations(node: onnx.NodeProto) -> list[str]:
    """Return the names of the inputs that are neither weights nor sizes."""
    return list(node.input) if node.op_type in ("Add", "Concat") else [node.input[0]]


def _slope(users: list[onnx.NodeProto]) -> float | None:
    # in networks of free size, nodes that measure a map take no values of it
    readers = [node for node in users if node.op_type != "Shape"]
    slopes = {node.attribute[0].f if node.op_type == "LeakyRelu" else None for node in readers}
    return slopes.pop() if len(slopes) == 1 else None


def take_ranges(model: onnx.ModelProto) -> Ranges:
    """Remove the pairs of `QuantizeLinear` and `DequantizeLinear` of a float network; return the ranges they stand for.

    :class:`seamseg.ops.quantisation.FakeQuantise` is exported as such a pair.
    """
    graph, ranges = model.graph, Ranges()
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    made = {node.output[0]: node for node in graph.node}
    outputs = {value.name for value in graph.output}
    renamed = {}
    for last in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        first = made[last.input[0]]
        scale, zero = (float(numpy_helper.to_array(constants[name])) for name in first.input[1:])
        # the names of the outputs of the network stay
        name, other = first.input[0], last.output[0]
        name, other = (other, name) if other in outputs else (name, other)
        renamed[other] = name
        ranges[name] = (-zero * scale, (LEVELS - zero) * scale)
        for node in (first, last):
            graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    return ranges


def replace_upsampling(model: onnx.ModelProto) -> None:
    """Replace transposed convolutions whose windows do not overlap by 1x1 convolutions, which have int8 kernels.

    The result is the same: a convolution to all cells of a window, and the activation if one follows; then the channels
    are moved to the cells.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = users_of(graph)
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


def separate_weights(model: onnx.ModelProto) -> None:
    """Give each layer its own weights: ONNX Runtime cannot load shared ones with kernels that do not saturate."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    used: set[str] = set()
    for node in graph.node:
        if node.op_type not in _WEIGHTED or (name := node.input[1]) not in weights:
            continue
        if name in used:
            own = graph.initializer.add()
            own.CopyFrom(weights[name])
            own.name = node.input[1] = f"{name}_{node.name}"
        used.add(name)


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
    session = onnxruntime.InferenceSession(observed.SerializeToString(), _quiet_settings(), ["CPUExecutionProvider"])
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


def _quiet_settings() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def quantise(model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]] | None) -> onnx.ModelProto:
    """Return a float32 network with `QuantizeLinear` and `DequantizeLinear` around its layers; the metadata stays.

    `samples` are inputs by name; None for a network trained for int8, which has ranges.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    learned = take_ranges(copy) if samples is None else None
    replace_upsampling(copy)
    separate_weights(copy)
    selection = select(copy, learned)
    if not selection.weighted:
        raise InputError("the network has no convolution or linear layer to quantise")
    if samples is not None:
        learned = _ranges(observe(copy, selection.slopes, samples), selection)
    assert learned is not None
    ranges = {name: tuple(np.asarray(end, np.float32) for end in learned[name]) for name in selection.slopes}
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
    _measure_integers(made.graph)
    operators = executed_operators(made)
    integer = sum(operators[name] for name in INT8_KERNELS)
    if integer < len(selection.weighted):
        raise SeamsegError(
            f"ONNX Runtime computes {integer} of {len(selection.weighted)} quantised layers in int8, the others in "
            "float"
        )
    return made


def _measure_integers(graph: onnx.GraphProto) -> None:
    """Take the shapes of int8 maps from them: else engines convert whole maps to float only for their shapes."""
    made = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in graph.node:
        if node.op_type == "Shape" and node.input[0] in made:
            node.input[0] = made[node.input[0]].input[0]
    users = users_of(graph)
    outputs = {value.name for value in graph.output}
    for name, node in made.items():
        if name not in users and name not in outputs:
            graph.node.remove(node)


def _ranges(histograms: Mapping[str, Histogram], selection: Selection) -> Ranges:
    if not any(histogram.counts.any() for histogram in histograms.values()):
        raise InputError("there is no image to calibrate with")
    ranges = {}
    for name, histogram in progress(histograms.items(), len(histograms), "ranges"):
        if not histogram.counts.any():
            raise InputError(
                f"the network finds no objects in the calibration images, so that {name} has no range: take other "
                "or more images"
            )
        ranges[name] = histogram.best_range(selection.slopes[name])
    return ranges


def executed_operators(model: onnx.ModelProto) -> Counter[str]:
    """Return the operators that ONNX Runtime executes for a network on this CPU, with the number of each."""
    with tempfile.TemporaryDirectory(prefix="seamseg-int8-") as folder:
        settings = _quiet_settings()
        settings.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        onnxruntime.InferenceSession(model.SerializeToString(), settings, ["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node)


def quantise_file(source: Path, target: Path, samples: Iterable[Mapping[str, np.ndarray]] | None) -> ExportedMetadata:
    """Quantise a float32 file of :func:`seamseg.contrib.deploy.onnx.write_onnx`; return the metadata of the new one.

    `target` is written atomically, and may be the source; samples and errors as of :func:`quantise`.
    """
    used = 0

    def counted() -> Iterator[Mapping[str, np.ndarray]]:
        nonlocal used
        for sample in samples or ():
            used += 1
            yield sample

    model = onnx.load(source)
    texts = {prop.key: prop.value for prop in model.metadata_props}
    stated = ExportedMetadata.from_json(texts[METADATA_KEY], str(source))
    made = quantise(model, None if samples is None else counted())
    origin = {"trained_for_int8": True} if samples is None else {"calibration_pictures": used}
    metadata = replace(stated, precision="int8", extra={**stated.extra, **origin})
    onnx.helper.set_model_props(made, {METADATA_KEY: metadata.to_json()})
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    onnx.checker.check_model(made)
    write_atomically(target, made.SerializeToString())
    return metadata
