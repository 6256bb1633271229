"""Small ONNX files that would take gigabytes, hours or the memory of the process, behind the outputs of a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.onnx_scenes import record, write_network

SIZE = (96, 160)
HUGE = 1_600_000_000
"""Elements: 6.4 GB of float32."""

Change = Callable[[onnx.ModelProto], None]


def write_attack(path: Path, change: Change, size: tuple[int, int] | None = SIZE) -> Path:
    """Write a semantic network with a change."""
    model = onnx.load(write_network(path, record("semantic", size)))
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def nodes(*given: onnx.NodeProto, **weights: object) -> Change:
    """Add nodes, of which the last makes `big`; the class map depends on its maximum."""

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        graph.initializer.extend(weight(name, value) for name, value in weights.items())
        for node in graph.node:
            node.output[:] = ["plain" if name == "classmap" else name for name in node.output]
        graph.node.extend(given)
        graph.node.append(helper.make_node("Cast", ["big"], ["big_float"], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("ReduceMax", ["big_float"], ["most"], keepdims=0))
        # ONNX Runtime 1.23 has no maximum of bytes
        graph.node.append(helper.make_node("Cast", ["plain"], ["plain_float"], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Max", ["plain_float", "most"], ["higher_float"]))
        graph.node.append(helper.make_node("Cast", ["higher_float"], ["classmap"], to=TensorProto.UINT8))

    return change


def weight(name: str, value: object) -> onnx.TensorProto:
    array = np.asarray(value)
    return numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, name)


def node(op: str, inputs: str, output: str = "big", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["" if name == "-" else name for name in inputs.split()], [output], **attributes)


FLOATS = node("Cast", "image", "floats", to=TensorProto.FLOAT)
COLUMN = (FLOATS, node("Reshape", "floats column", "a"), node("Reshape", "floats row", "b"))
ENDS = {"column": [-1, 1], "row": [1, -1]}
OF_PICTURE = (
    FLOATS,
    node("ReduceMax", "floats", "brightest", keepdims=0),
    node("Cast", "brightest", "whole", to=TensorProto.INT64),
    node("Mul", "whole large", "product"),
    node("Reshape", "product one", "shape"),
)


def _alive(count: int, side: int) -> Change:
    """Tensors that exist one after the other in the order of the file, and all at a time if its end comes first."""
    made = [FLOATS, node("ReduceMax", "floats", "sum0", keepdims=0)]
    for i in range(1, count + 1):
        made += [node("Expand", "sum0 sides", f"wide{i}"), node("ReduceMax", f"wide{i}", f"high{i}", keepdims=0)]
        made += [node("Add", f"wide{i} sum{i - 1}", f"both{i}"), node("ReduceMax", f"both{i}", f"sum{i}", keepdims=0)]
    return nodes(*made, node("Identity", f"sum{count}"), sides=[side])


def _external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "4096"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)


def _function(model: onnx.ModelProto) -> None:
    body = [helper.make_node("Identity", ["x"], ["y"])]
    model.functions.append(helper.make_function("own", "Big", ["x"], ["y"], body, [helper.make_opsetid("", 20)]))


def _stated_shape(model: onnx.ModelProto) -> None:
    """A file states the shape of a tensor, and makes another of that shape."""
    shape = (node("Shape", "image", "side", start=3), node("Concat", "free side", "sides", axis=0))
    made = (node("Reshape", "image sides", "odd"), node("Shape", "odd", "wide"), node("ConstantOfShape", "wide"))
    nodes(*shape, *made, free=[-1])(model)
    model.graph.value_info.append(helper.make_tensor_value_info("odd", TensorProto.UINT8, [HUGE]))


def _unfilled(model: onnx.ModelProto) -> None:
    tensor = weight("small", [0.0])
    tensor.dims[:] = [HUGE]
    nodes(node("Identity", "small"))(model)
    model.graph.initializer.append(tensor)


BODY = helper.make_graph([], "body", [], [])
SUPPRESSED = (
    FLOATS,
    node("Reshape", "floats corners", "boxes"),
    node("Slice", "boxes zero one two", "score_columns"),
    node("Reshape", "score_columns flat", "box_scores"),
    node("NonMaxSuppression", "boxes box_scores most_boxes", "kept"),
)
BOXES = {"corners": [1, -1, 4], "one": [1], "two": [2], "flat": [1, 1, -1], "most_boxes": [9]}

ANYWHERE = (
    *OF_PICTURE,
    node("Add", "shape away", "place"),
    node("Reshape", "floats column", "flat_column"),
    node("Reshape", "floats flat_shape", "flat"),
)
AWAY = {"large": 1, "one": [1], "away": [-100_000], "column": [-1, 1], "flat_shape": [-1]}

ATTACKS: dict[str, tuple[Change, str]] = {
    "constant": (nodes(node("ConstantOfShape", "shape"), shape=[HUGE]), "needs tensors of"),
    "expand of the picture": (
        nodes(*OF_PICTURE, node("Expand", "brightest shape"), large=HUGE, one=[1]),
        "depends on the image",
    ),
    "range": (nodes(node("Range", "a b c"), a=0.0, b=float(1 << 24), c=1.0 / (1 << 14)), "whole numbers"),
    "resize to sides": (
        nodes(FLOATS, node("Resize", "floats - - sides"), sides=[1, 3, 30_000, 30_000]),
        "needs tensors of",
    ),
    "one hot": (nodes(node("OneHot", "image depth ends"), depth=100_000, ends=[0.0, 1.0]), "the operator 'OneHot'"),
    "transposed convolution": (
        nodes(FLOATS, node("ConvTranspose", "floats kernel", strides=[300, 300]), kernel=np.zeros((3, 1, 1, 1))),
        "needs tensors of",
    ),
    "product": (nodes(*COLUMN, node("MatMul", "a b"), **ENDS), "needs tensors of"),
    "linear layer": (nodes(*COLUMN, node("Gemm", "a b"), **ENDS), "needs tensors of"),
    "equation of several tensors": (
        nodes(FLOATS, node("Einsum", "floats floats floats", equation="abcd,abce,abcf->def")),
        "has another equation",
    ),
    "equation of other sides": (
        nodes(FLOATS, node("Einsum", "floats few", equation="abcd,be->abcde"), few=np.zeros((2, 2), np.float32)),
        "combines other sides than its equation",
    ),
    "sampling anywhere": (
        nodes(FLOATS, node("GridSample", "floats grid", padding_mode="border"), grid=[[[[0.0, 0.5]]]]),
        "samples with another padding",
    ),
    "many at a time": (_alive(100, 20_000_000), "needs tensors of"),
    "work": (
        nodes(
            FLOATS,
            node("ReduceMax", "floats", "brightest", keepdims=0),
            node("Expand", "brightest sides", "p0"),
            *(node("MatMul", f"p{i} p0", f"p{i + 1}") for i in range(200)),
            node("Identity", "p200"),
            sides=[2048, 2048],
        ),
        "multiplications",
    ),
    "suppression": (
        nodes(*SUPPRESSED, node("Shape", "kept", "sides"), node("ConstantOfShape", "sides"), **BOXES),
        "depends on the image",
    ),
    "regions": (
        nodes(FLOATS, node("RoiAlign", "floats rois index"), rois=np.array([[0, 0, 1e30, 1e30]]), index=[0]),
        "no fixed number of samples",
    ),
    "division by 0": (
        nodes(node("Cast", "image", "whole", to=TensorProto.INT32), node("Div", "whole whole")),
        "what may be 0",
    ),
    "read anywhere": (nodes(*ANYWHERE, node("GatherND", "flat place"), **AWAY), "indices that may be out of range"),
    "write anywhere": (
        nodes(*ANYWHERE, node("ScatterElements", "flat place five"), five=[5.0], **AWAY),
        "indices that may be out of range",
    ),
    "index": (nodes(node("Shape", "image", "sides"), node("Gather", "sides where"), where=[7]), "out of range"),
    "loop": (nodes(node("Loop", "rounds - first", body=BODY), rounds=1 << 62, first=0.0), "a subgraph"),
    "function": (_function, "functions"),
    "memory of the process": (_external, "data in other files"),
    "stated shape": (_stated_shape, "it states the shape"),
    "missing values": (_unfilled, "has not the values of its shape"),
    "other operators": (
        nodes(helper.make_node("Gelu", ["image"], ["big"], domain="com.microsoft")),
        "the operator com.microsoft.Gelu",
    ),
    "many nodes": (
        nodes(
            FLOATS,
            *(node("Neg", f"n{i}" if i else "floats", f"n{i + 1}" if i < 20_000 else "big") for i in range(20_001)),
        ),
        "nodes, the limit is",
    ),
}
"""By name: the change of a file, and what its refusal says."""
