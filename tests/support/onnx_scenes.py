"""Exported networks written by hand: the class of a pixel is its red value, two objects are always in one place."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.config import config_to_string, default_config
from seamseg.maps.formats.exported import CLASSIFIER_SIDES, METADATA_KEY, QUERY_OUTPUTS, ExportedMetadata
from seamseg.maps.formats.metadata import Metadata

_COLORS = [(128, 64, 128), (70, 130, 180), (220, 20, 60), (0, 0, 142)]
CLASSES = Metadata(2, 2, ["road", "sky", "person", "car"], _COLORS, [7, 23, 24, 26])
BOXES = np.array([[10, 12, 40, 60], [30, 70, 60, 110]], np.float32)
SCORES = np.array([0.9, 0.7], np.float32)
THINGS = np.array([1, 0], np.int64)
ROWS = 5
"""Detections of the graph, of which two exist."""
OUTPUTS = {
    "panoptic": ("boxes", "classes", "scores", "mask_logits", "count", "classmap"),
    "instance_seg": ("boxes", "classes", "scores", "mask_logits", "count"),
    "detection": ("boxes", "classes", "scores", "count"),
    "semantic": ("classmap", "probability"),
    "classification": ("logits",),
}
QUERY_CLASSES = (3, 0, 2, 1)
"""Of networks of queries: car, road, person, sky."""


def scene(size: tuple[int, int]) -> np.ndarray:
    """An image `H x W x 3`: sky above the road."""
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[: size[0] // 3, :, 0] = 1
    pixels[..., 1] = np.arange(size[1], dtype=np.uint8)
    return pixels


def masks() -> np.ndarray:
    """Logits of the two objects; the left half of the second is not on it."""
    logits = np.full((2, 28, 28), 5, np.float32)
    logits[1, :, :14] = -5
    return logits


def queries() -> tuple[np.ndarray, np.ndarray]:
    """Class and mask logits of a network of queries: a car on a road below the sky, and a query of nothing."""
    class_logits = np.zeros((4, len(QUERY_CLASSES) + 1), np.float32)
    for query, column in enumerate((0, 1, 3, 4)):
        class_logits[query, column] = 9
    mask_logits = np.full((4, 24, 40), -9, np.float32)
    mask_logits[0, 10:18, 5:20] = 9
    mask_logits[1, 8:] = 5
    mask_logits[1, 10:18, 5:20] = -9
    mask_logits[2, :8] = 9
    return class_logits, mask_logits


def record(kind: str = "panoptic", size: tuple[int, int] | None = None, **changes: Any) -> ExportedMetadata:
    ini = config_to_string(default_config(kind))
    free = {} if size else {"multiple": 32, "sides": (256, 4096)}
    return ExportedMetadata(kind, ini, CLASSES, size, **{**free, **changes})


def write_network(path: Path, exported: ExportedMetadata, text: str | None = None, **metadata: str) -> Path:
    """Write the network of a record; `text` replaces its metadata, others are added."""
    from onnx import TensorProto, helper, numpy_helper

    sides: list[Any] = list(exported.size or ("height", "width"))
    padded = ((0, ROWS - 2), *((0, 0),) * 2)
    constants = {
        "boxes": np.pad(BOXES, padded[:2]),
        "classes": np.pad(THINGS, padded[:1]),
        "scores": np.pad(SCORES, padded[:1]),
        "mask_logits": np.pad(masks(), padded),
        "count": np.array(2, np.int64),
    }
    names = (*OUTPUTS[exported.kind], *exported.maps, *("ids",) * exported.with_ids)
    if exported.of_queries:
        names = QUERY_OUTPUTS
        constants = dict(zip(names, queries(), strict=True))
    nodes, outputs, info = [], [], helper.make_tensor_value_info
    for name in names:
        value = constants.get(name, np.array(0 if name == "classmap" else 1))
        made = name if name in constants else f"i_{name}"
        nodes.append(helper.make_node("Constant", [], [made], value=numpy_helper.from_array(value, f"c_{name}")))
        if name in constants:
            outputs.append(info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
        else:
            nodes.append(helper.make_node("Gather", ["image", made], [f"g_{name}"], axis=1))
            nodes.append(helper.make_node("Squeeze", [f"g_{name}", "zero"], [name]))
            outputs.append(info(name, TensorProto.UINT8, sides))
    inputs = [info("image", TensorProto.UINT8, [1, 3, *sides]), info("size", TensorProto.INT64, [2])]
    # the inputs are used, so that they stay inputs
    if exported.of_queries:
        nodes.append(helper.make_node("Identity", ["image"], ["image_out"]))
        outputs.append(info("image_out", TensorProto.UINT8, [1, 3, *sides]))
    nodes.append(helper.make_node("Identity", ["size"], ["size_out"]))
    outputs.append(info("size_out", TensorProto.INT64, [2]))
    weights = [numpy_helper.from_array(np.array([0], np.int64), "zero")]
    graph = helper.make_graph(nodes, "scene", inputs, outputs, weights)
    return _write(path, graph, {METADATA_KEY: exported.to_json() if text is None else text, **metadata})


def _write(path: Path, graph: Any, metadata: dict[str, str]) -> Path:
    from onnx import helper

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())
    return path


def write_classifier(path: Path, crop: tuple[int, int] = (32, 32), scale: int = 64, free: bool = False) -> Path:
    from onnx import TensorProto, helper, numpy_helper

    classes = Metadata(0, 3, ["red", "green", "blue"], [(255, 0, 0), (0, 255, 0), (0, 0, 255)], [0, 1, 2])
    text = json.dumps({"input": {"scale_val": scale, "crop_val": crop[0]}})
    size = None if free else crop
    sides = CLASSIFIER_SIDES if free else None
    normalisation = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}
    exported = ExportedMetadata("classification", text, classes, size, sides=sides, **normalisation)
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image", "axes"], ["logits"], keepdims=0)],
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, *(("h", "w") if free else crop)])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.array([2, 3], np.int64), "axes")],
    )
    return _write(path, graph, {METADATA_KEY: exported.to_json()})
