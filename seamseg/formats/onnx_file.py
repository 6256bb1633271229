"""Read the graph of an untrusted ONNX file, without the weights and without the `onnx` package.

Only fields that exported networks have are read, and others refused: no data in other files, subgraphs or functions.
Weights stay in the file; their sizes are compared with their shapes.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.formats.protobuf import DamagedFile, MessageReader, RefusedFile, schema
from seamseg.utils.limits import KIB

NODES = 10_000
"""Most nodes of a graph: the largest networks have some thousands. OpenVINO takes quadratic time for a chain."""
_VALUE_BYTES = 8 * KIB
"""Larger tensors have values that no shape is calculated from."""

_NAMES = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8", 12: "u4", 13: "u8"}
DTYPES = {number: np.dtype(f"<{name}") for number, name in _NAMES.items()}
"""Types of tensors by their number in ONNX, but bfloat16, which numpy does not have."""
BOOL, INT64, UINT64, _BFLOAT16 = 9, 7, 13, 16
FLOATS = (1, 10, 11, _BFLOAT16)
WHOLE = (2, 3, 4, 5, 6, 7, 12, 13)
ITEM_BYTES = {**{number: dtype.itemsize for number, dtype in DTYPES.items()}, _BFLOAT16: 2}
"""Bytes of a value, of all types that are read."""

_MESSAGES = {
    "StringStringEntryProto": "1 text key, 2 text value",
    "TensorProto": "1 int* dims, 2 int data_type, 4 span float_data, 5 span int32_data, 7 span int64_data, "
    "8 text name, 9 span raw_data, 10 span double_data, 11 span uint64_data, 12 span doc_string, 14 int data_location, "
    "16 span* metadata_props",
    "AttributeProto": "1 text name, 2 float f, 3 int i, 4 text s, 5 TensorProto t, 7 float* floats, 8 int* ints, "
    "9 text* strings, 13 span doc_string, 20 int type",
    "NodeProto": "1 text* input, 2 text* output, 3 text name, 4 text op_type, 5 AttributeProto* attribute, "
    "6 span doc_string, 7 text domain, 8 text overload, 9 span* metadata_props",
    "Dimension": "1 int dim_value, 2 text dim_param, 3 span denotation",
    "TensorShapeProto": "1 Dimension* dim",
    "TypeProto.Tensor": "1 int elem_type, 2 TensorShapeProto shape",
    "TypeProto": "1 TypeProto.Tensor tensor_type, 6 span denotation",
    "ValueInfoProto": "1 text name, 2 TypeProto type, 3 span doc_string, 4 span* metadata_props",
    "GraphProto": "1 NodeProto* node, 2 text name, 5 TensorProto* initializer, 10 span doc_string, "
    "11 ValueInfoProto* input, 12 ValueInfoProto* output, 13 ValueInfoProto* value_info, "
    "16 span* metadata_props",
    "OperatorSetIdProto": "1 text domain, 2 int version",
    "ModelProto": "1 int ir_version, 2 text producer_name, 3 text producer_version, 4 text domain, "
    "5 int model_version, 6 span doc_string, 7 GraphProto graph, 8 OperatorSetIdProto* opset_import, "
    "14 StringStringEntryProto* metadata_props",
}
"""Fields that are read, with their numbers and types; those with a star are repeated, spans are skipped."""
_SCHEMAS = {name: schema(fields) for name, fields in _MESSAGES.items()}
_FOREIGN = {
    ("TensorProto", 13): "it has data in other files",
    ("AttributeProto", 6): "it has a subgraph",
    ("AttributeProto", 11): "it has subgraphs",
    ("GraphProto", 15): "it has sparse weights",
    ("ModelProto", 25): "it has functions",
    ("ModelProto", 20): "it has a graph for training",
}
_FIELD_TYPES = {
    "raw_data": tuple(ITEM_BYTES),
    "float_data": (1,),
    "double_data": (11,),
    "int32_data": (2, 3, 4, 5, 6, BOOL, 10, _BFLOAT16),
    "int64_data": (INT64,),
    "uint64_data": (12, 13),
}
"""Types of values in a field of a tensor."""
_ATTRIBUTE_TYPES = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}


@dataclass(frozen=True)
class Tensor:
    """A weight or constant: its shape, and its value if it is small."""

    shape: tuple[int, ...]
    dtype: int
    value: np.ndarray | None


@dataclass(frozen=True)
class Node:
    """An operator: tensors are names, empty for optional ones that are left out."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


Stated = tuple[int, tuple[int | None, ...] | None]
"""Type and shape that a file states for a tensor; None for free sides, and for an unknown shape."""


@dataclass(frozen=True)
class OnnxGraph:
    """The graph of a file.

    Attributes
    ----------
    metadata : texts of the file by their keys
    opset : version of the operators
    nodes : nodes in the order of the file
    weights : weights by name
    inputs, outputs, values : what the file states about inputs, outputs and tensors between
    """

    metadata: dict[str, str]
    opset: int
    nodes: list[Node]
    weights: dict[str, Tensor]
    inputs: dict[str, Stated]
    outputs: dict[str, Stated]
    values: dict[str, Stated]


def read_onnx(path: Path) -> OnnxGraph:
    """Read the graph of a file.

    Raises
    ------
    DamagedFile, RefusedFile
        see there
    OSError
        if the file cannot be read
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise DamagedFile("the file is empty") from None
        with data:
            return _GraphReader(data, _SCHEMAS, _FOREIGN).graph()


class _GraphReader(MessageReader):
    def graph(self) -> OnnxGraph:
        model = self.message(0, len(self._data), "ModelProto")
        graph = model.get("graph")
        versions = [(opset.get("domain", ""), opset.get("version", 0)) for opset in model.get("opset_import", [])]
        if graph is None or len(versions) != 1:
            raise DamagedFile("no graph, or operators of several sets")
        if versions[0][0] not in ("", "ai.onnx"):
            raise RefusedFile(f"it has operators of {versions[0][0]!r:.40}")
        if len(graph.get("node", [])) > NODES:
            raise RefusedFile(f"it has {len(graph['node'])} nodes, the limit is {NODES}")
        nodes = [self._node(node) for node in graph.get("node", [])]
        weights = _by_name([(t.get("name", ""), self._tensor(t)) for t in graph.get("initializer", [])], "weight")
        inputs, outputs, values = (
            _by_name([(value.get("name", ""), self._stated(value)) for value in graph.get(part, [])], part)
            for part in ("input", "output", "value_info")
        )
        pairs = [(entry.get("key", ""), entry.get("value", "")) for entry in model.get("metadata_props", [])]
        return OnnxGraph(_by_name(pairs, "metadata"), versions[0][1], nodes, weights, inputs, outputs, values)

    def _node(self, node: dict[str, Any]) -> Node:
        op = node.get("op_type", "")
        if node.get("domain", "") not in ("", "ai.onnx") or node.get("overload"):
            raise RefusedFile(f"it has the operator {node.get('domain', '')[:40]}.{op:.40}")
        pairs = [(a.get("name", ""), self._attribute(a)) for a in node.get("attribute", [])]
        inputs, outputs = (tuple(node.get(part, ())) for part in ("input", "output"))
        return Node(op, inputs, outputs, _by_name(pairs, f"attribute of {op:.40}"))

    def _attribute(self, attribute: dict[str, Any]) -> Any:
        kind = _ATTRIBUTE_TYPES.get(attribute.get("type", 0))
        stated = [name for name in _ATTRIBUTE_TYPES.values() if name in attribute]
        if kind is None or stated not in ([kind], []):
            raise DamagedFile(f"the attribute {attribute.get('name', '')!r:.40} has a value of another type")
        if kind == "t":
            return self._tensor(attribute.get("t", {}))
        return attribute.get(kind, {"f": 0.0, "i": 0, "s": ""}.get(kind, []))

    def _stated(self, value: dict[str, Any]) -> Stated:
        kind = value.get("type", {}).get("tensor_type")
        if kind is None:
            raise RefusedFile(f"{value.get('name', '')!r:.40} is no tensor, or of an unknown type")
        dtype = _dtype(kind.get("elem_type", 0))
        if "shape" not in kind:
            return dtype, None
        dims = [dim.get("dim_value") for dim in kind["shape"].get("dim", [])]
        if any(dim is not None and dim < 0 for dim in dims):
            raise DamagedFile(f"{value.get('name', '')!r:.40} has a negative side")
        return dtype, tuple(dims)

    def _tensor(self, tensor: dict[str, Any]) -> Tensor:
        """Check that a tensor has as many values as its shape says."""
        dims, dtype = tuple(tensor.get("dims", ())), _dtype(tensor.get("data_type", 0))
        name = tensor.get("name", "")
        if tensor.get("data_location", 0) != 0:
            raise RefusedFile("it has data in other files")
        parts = [field for field in tensor if field.endswith("_data")]
        if len(parts) > 1 or any(dim < 0 for dim in dims) or len(dims) > 16:
            raise DamagedFile(f"the tensor {name!r:.40} has two values or a negative side")
        kind = parts[0] if parts else "raw_data"
        if dtype not in _FIELD_TYPES[kind]:
            raise DamagedFile(f"the tensor {name!r:.40} has values of the type {dtype} in {kind}")
        start, end = tensor.get(kind, (0, 0))
        varying = kind in ("int32_data", "int64_data", "uint64_data")
        stored = end - start
        if varying and stored:  # the last byte of each number is below 128
            stored = int(np.count_nonzero(np.frombuffer(self._data, np.uint8, stored, start) < 128))
        if stored != math.prod(dims) * (1 if varying else ITEM_BYTES[dtype]):
            raise DamagedFile(f"the tensor {name!r:.40} has not the values of its shape")
        if end - start > _VALUE_BYTES or dtype not in (WHOLE if varying else DTYPES):
            return Tensor(dims, dtype, None)
        if varying:
            values = np.array(self.packed(start, end), np.int64).astype(DTYPES[dtype])
        else:
            values = np.frombuffer(self.keep(start, end), DTYPES[dtype])
        return Tensor(dims, dtype, values.reshape(dims))


def _dtype(number: int) -> int:
    if number not in ITEM_BYTES:
        raise RefusedFile(f"it has values of the type {number} of ONNX")
    return number


def _by_name(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DamagedFile(f"two of one name: {what}")
    return found
