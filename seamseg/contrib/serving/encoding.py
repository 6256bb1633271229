"""Results of images as the content of HTTP responses: JSON, id image, overlay, and what the page shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.inference.predictor import Predictor
from seamseg.inference.results.base import ImageResult
from seamseg.inference.results.classification import Classification
from seamseg.inference.results.detections import Detections
from seamseg.inference.results.panoptic import Panoptic
from seamseg.inference.results.semantic import SemanticMap
from seamseg.maps.formats.coco_writer import encode_result
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.idmaps.resize import resize_nearest
from seamseg.maps.idmaps.segments import areas_and_boxes, count_classes
from seamseg.maps.images import pixels_of
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.report.images import encode_index_map, encode_jpeg, reduced_shape
from seamseg.maps.visualize.maps import draw_map, encode_map
from seamseg.maps.visualize.palette import distinct_colors
from seamseg.predicting.writers.images import LabelsWriter, OverlayWriter

VIEW_SIZE = 1280
"""Longest side in pixels of what the page shows."""

JSON, PNG, JPEG, ARRAY = "application/json", "image/png", "image/jpeg", "application/octet-stream"

Entry = dict[str, Any]
Decode = Callable[[], Image.Image]
"""Decodes the image: most formats do not need its pixels."""


@dataclass(frozen=True)
class Content:
    """Content of a response and its media type."""

    data: bytes
    media_type: str


_Encoder = Callable[[ImageResult, ArrayPrediction, Decode], Content]


class ResultEncoder:
    """Encodes the results of one model in any of :attr:`formats`, the default first; its network is not run."""

    def __init__(self, predictor: Predictor[Any]) -> None:
        self._predictor = predictor
        self._metadata: Metadata = predictor.metadata
        self._classes = _class_entries(predictor.metadata, predictor.kind)
        self._kind = SERVED_KINDS[predictor.kind]
        self._encoders: dict[str, _Encoder] = {
            "json": self._json,
            **({} if self._kind.png is None else {"png": self._png}),
            "overlay": self._overlay,
            "view": self._view,
            **{name: partial(self._map, name) for name in predictor.map_formats},
        }
        self.formats = tuple(self._encoders)

    def encode(self, name: str, prediction: ArrayPrediction, size: tuple[int, int], decode: Decode) -> Content:
        """Encode the result of an image of `size` (height, width), which `decode` reads; thread-safe."""
        prediction = self._predictor.in_units(prediction, size)
        return self._encoders[name](self._predictor.result(prediction, size), prediction, decode)

    def _json(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        segments = self.segments(result)
        present = {s["category_id"] for s in segments}
        classes = [entry for entry in self._classes if entry["id"] in present]
        height, width = result.size
        content = {"kind": self._predictor.kind, "width": width, "height": height}
        return _json({**content, "segments": segments, "classes": classes})

    def _png(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        assert self._kind.png is not None
        return Content(self._kind.png(result, prediction, self._metadata), PNG)

    def _overlay(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        # the content of the file that `predict` writes
        writer = OverlayWriter(Path(), self._metadata)
        return Content(writer.encode(pixels_of(decode()), prediction, result), JPEG)

    def _map(self, name: str, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        spec = self._predictor.map_formats[name]
        return Content(encode_map(prediction.maps[name], spec, result.size), PNG if spec.ending == ".png" else ARRAY)

    def _view(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        shape = reduced_shape(*result.size, VIEW_SIZE)
        indices = self._kind.index_map(result, shape)
        named: list[Entry] = []
        for category, entry in self._kind.entries(result, self._metadata):
            shown = {key: entry.get(key) for key in ("class", "score", "area")}
            info = self._classes[category]
            named.append({**shown, "thing": info["isthing"], "color": info["color"]})
        maps = {}
        for name, spec in self._predictor.map_formats.items():
            drawn = Image.fromarray(draw_map(prediction.maps[name], spec, shape))
            maps[name] = encode_jpeg(drawn, shape)
        return _json(
            {
                "kind": self._predictor.kind,
                "width": shape[1],
                "height": shape[0],
                "full": [result.size[1], result.size[0]],
                "photo": encode_jpeg(decode(), shape),
                "map": encode_index_map(indices, len(named)),
                "maps": maps,
                "segments": named,
            }
        )

    def segments(self, result: ImageResult) -> list[Entry]:
        """Return segments, objects or classes with `category_id`, `class`, `score`, and `bbox` and `area` in pixels.

        Those of a panoptic map have the `id` of the id image; crowds are void. For a classifier they are the most
        probable classes, without `bbox` and `area`.
        """
        return [entry for _, entry in self._kind.entries(result, self._metadata)]


def _class_entries(metadata: Metadata, kind: str) -> list[Entry]:
    infos = class_infos(metadata)
    # as in the COCO formats of `predict`
    ids = [c.id for c in infos] if kind == "panoptic" else range(len(infos))
    # classifiers have no colours
    colors = metadata.palette or distinct_colors(len(infos)).tolist()
    return [
        {"id": i, "name": c.name, "isthing": c.isthing, "color": list(rgb)}
        for i, c, rgb in zip(ids, infos, colors, strict=True)
    ]


def _json(content: Any) -> Content:
    return Content(json.dumps(content, allow_nan=False, separators=(",", ":")).encode(), JSON)


def _panoptic_entries(result: Panoptic, metadata: Metadata) -> list[tuple[int, Entry]]:
    shown = [s.category for s in result.segments if not s.iscrowd]
    found = []
    for category, e in zip(shown, result.to_coco()[0]["segments_info"], strict=True):
        entry = {"id": e["id"], "category_id": e["category_id"], "class": metadata.categories[category]}
        found.append((category, {**entry, "score": e.get("score"), "bbox": e["bbox"], "area": e["area"]}))
    return found


def _object_entries(result: Detections, metadata: Metadata) -> list[tuple[int, Entry]]:
    found = []
    for detection, e in zip(result, result.to_coco(), strict=True):
        e.pop("image_id")
        entry = {"category_id": e.pop("category_id"), "class": metadata.categories[detection.category], **e}
        found.append((detection.category, {**entry, "area": detection.area}))
    return found


def _class_map_entries(result: SemanticMap, metadata: Metadata) -> list[tuple[int, Entry]]:
    areas, boxes = areas_and_boxes(result.classes.astype(np.int32) + 1, VOID + 1)
    found = []
    for category in _present(result):
        y0, x0, y1, x1 = (int(v) for v in boxes[category + 1])
        entry = {"category_id": category, "class": metadata.categories[category], "score": None}
        found.append((category, {**entry, "bbox": [x0, y0, x1 - x0, y1 - y0], "area": int(areas[category + 1])}))
    return found


def _class_entries_of_image(result: Classification, metadata: Metadata) -> list[tuple[int, Entry]]:
    return [(c, {"category_id": c, "class": name, "score": share}) for name, c, _, share in result.shares()]


def _present(result: SemanticMap) -> list[int]:
    return np.flatnonzero(count_classes(result.classes)[:VOID]).tolist()


def _panoptic_index_map(result: Panoptic, shape: tuple[int, int]) -> np.ndarray:
    return _numbered(result.id_map, [s.id for s in result.segments if not s.iscrowd], shape)


def _id_png(result: Panoptic, prediction: ArrayPrediction, metadata: Metadata) -> bytes:
    return encode_result(result, metadata)[1]


def _numbered(ids: np.ndarray, shown: list[int], shape: tuple[int, int]) -> np.ndarray:
    return look_up(resize_nearest(ids, shape), [(identity, k) for k, identity in enumerate(shown, 1)], np.int32)


def _object_index_map(result: Detections, shape: tuple[int, int]) -> np.ndarray:
    ids = np.zeros(result.size, np.int32)
    if result.has_masks:
        order = np.argsort(result.scores, kind="stable")
    else:
        order = np.argsort([-d.area for d in result], kind="stable")
    for k in order.tolist():
        d = result[k]
        if d.crop is not None:
            (y, x), (height, width) = d.corner, d.crop.shape
            ids[y : y + height, x : x + width][d.crop] = k + 1
        else:
            y0, x0, y1, x1 = (max(0, round(v)) for v in d.box)
            ids[y0:y1, x0:x1] = k + 1
    return resize_nearest(ids, shape)


@dataclass(frozen=True)
class ServedKind:
    """How the results of one kind of network are encoded.

    `entries` are class index and JSON of each segment, object or class. `index_map` has the number of the entry of each
    pixel, from 1; 0 is void. Of overlapping objects that of the highest score, or without masks the smallest box, is on
    top. `png` is the id image; None for objects, which may overlap, and for classifiers.
    """

    entries: Callable[[Any, Metadata], list[tuple[int, Entry]]]
    index_map: Callable[[Any, tuple[int, int]], np.ndarray]
    png: Callable[[Any, ArrayPrediction, Metadata], bytes] | None = None


_OBJECTS = ServedKind(_object_entries, _object_index_map)

SERVED_KINDS = {
    "panoptic": ServedKind(_panoptic_entries, _panoptic_index_map, _id_png),
    "instance_seg": _OBJECTS,
    "detection": _OBJECTS,
    "semantic": ServedKind(
        _class_map_entries,
        lambda result, shape: _numbered(result.classes, _present(result), shape),
        lambda result, prediction, metadata: LabelsWriter(Path(), metadata).encode(None, prediction, result),
    ),
    "classification": ServedKind(_class_entries_of_image, lambda result, shape: np.zeros(shape, np.int32)),
}
"""By the kind of the network."""
