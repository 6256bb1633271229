"""Results of photos as the content of HTTP responses: JSON, id image, overlay, and what the page shows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.idmaps.resize import resize_nearest
from seamseg.idmaps.segments import areas_and_boxes, count_classes
from seamseg.inference.classification import Classification
from seamseg.inference.detections import Detections
from seamseg.inference.photo_result import PhotoResult
from seamseg.inference.predictor import Predictor
from seamseg.inference.result import Panoptic
from seamseg.inference.semantic import SemanticMap
from seamseg.panoptic_map import VOID, class_infos
from seamseg.predict.writers import FORMATS as FILE_FORMATS
from seamseg.predict.writers.images import ImageWriter
from seamseg.predictions import ArrayPrediction
from seamseg.report.images import encode_index_map, encode_photo, reduced_shape
from seamseg.visualize.palette import distinct_colors

VIEW_SIZE = 1280
"""Longest side in pixels of what the page shows."""

JSON, PNG, JPEG = "application/json", "image/png", "image/jpeg"

Entry = dict[str, Any]
Photo = Callable[[], Image.Image]
"""Decodes the photo: most formats do not need its pixels."""


@dataclass(frozen=True)
class Content:
    """Content of a response and its media type."""

    data: bytes
    media_type: str


class ResultEncoder:
    """Encodes the results of one model.

    Parameters
    ----------
    predictor : of any kind; its network is not run

    Attributes
    ----------
    formats : names for :meth:`encode`, the default first
    """

    def __init__(self, predictor: Predictor[Any]) -> None:
        self._predictor = predictor
        self._metadata: Metadata = predictor.metadata
        self._classes = _class_entries(predictor.metadata, predictor.kind)
        encoders = {"json": self._json, "png": self._png, "overlay": self._overlay, "view": self._view}
        if predictor.kind not in ("panoptic", "semantic"):
            # objects may overlap
            del encoders["png"]
        self._encoders = encoders
        self.formats = tuple(encoders)

    def encode(self, name: str, prediction: ArrayPrediction, size: tuple[int, int], photo: Photo) -> Content:
        """Encode the result of a photo; thread-safe.

        Parameters
        ----------
        name : of :attr:`formats`
        prediction : output of the network
        size : `(height, width)` of the photo
        photo : decodes it
        """
        return self._encoders[name](self._predictor.result(prediction, size), prediction, photo)

    def _json(self, result: PhotoResult, prediction: ArrayPrediction, photo: Photo) -> Content:
        segments = self.segments(result)
        present = {s["category_id"] for s in segments}
        classes = [entry for entry in self._classes if entry["id"] in present]
        height, width = result.size
        content = {"kind": self._predictor.kind, "width": width, "height": height}
        return _json({**content, "segments": segments, "classes": classes})

    def _png(self, result: PhotoResult, prediction: ArrayPrediction, photo: Photo) -> Content:
        if isinstance(result, Panoptic):
            buffer = BytesIO()
            # of the same speed and size as the files of `predict`
            result.to_coco()[1].save(buffer, "PNG", compress_level=3)
            return Content(buffer.getvalue(), PNG)
        return Content(self._file("labels", None, prediction, result), PNG)

    def _overlay(self, result: PhotoResult, prediction: ArrayPrediction, photo: Photo) -> Content:
        return Content(self._file("overlay", np.asarray(photo()), prediction, result), JPEG)

    def _file(self, name: str, rgb: np.ndarray | None, prediction: ArrayPrediction, result: PhotoResult) -> bytes:
        """Return the content of the file that `predict` writes."""
        writer = FILE_FORMATS[self._predictor.kind][name](Path(), self._metadata)
        assert isinstance(writer, ImageWriter)
        return writer.encode(rgb, prediction, result)

    def _view(self, result: PhotoResult, prediction: ArrayPrediction, photo: Photo) -> Content:
        shape = reduced_shape(*result.size, VIEW_SIZE)
        indices = _index_map(result, shape)
        named: list[Entry] = []
        for entry, category in zip(self.segments(result), _categories(result), strict=True):
            shown = {key: entry.get(key) for key in ("class", "score", "area")}
            info = self._classes[category]
            named.append({**shown, "thing": info["isthing"], "color": info["color"]})
        return _json(
            {
                "kind": self._predictor.kind,
                "width": shape[1],
                "height": shape[0],
                "full": [result.size[1], result.size[0]],
                "photo": base64.b64encode(encode_photo(photo(), shape)).decode("ascii"),
                "map": encode_index_map(indices, len(named)),
                "segments": named,
            }
        )

    def segments(self, result: PhotoResult) -> list[Entry]:
        """Return segments, objects or classes with `category_id`, `class`, `score`, and `bbox` and `area` in pixels.

        Those of a panoptic map have the `id` of the id image; crowds are void. Of a classifier, the most probable
        classes, without `bbox` and `area`.
        """
        names = self._metadata.categories
        if isinstance(result, Panoptic):
            entries = result.to_coco()[0]["segments_info"]
            return [
                {"id": e["id"], "category_id": e["category_id"], "class": names[c], "score": e.get("score")}
                | {"bbox": e["bbox"], "area": e["area"]}
                for e, c in zip(entries, _categories(result), strict=True)
            ]
        if isinstance(result, SemanticMap):
            return self._regions(result)
        assert isinstance(result, (Detections, Classification))
        found = []
        for e, c in zip(result.to_coco(), _categories(result), strict=True):
            e.pop("image_id")
            found.append({"category_id": e.pop("category_id"), "class": names[c], **e})
        if isinstance(result, Detections):
            for entry, detection in zip(found, result, strict=True):
                entry["area"] = detection.area
        return found

    def _regions(self, result: SemanticMap) -> list[Entry]:
        ids = result.classes.astype(np.int32) + 1
        areas, boxes = areas_and_boxes(ids, VOID + 1)
        found = []
        for category in _categories(result):
            y0, x0, y1, x1 = (int(v) for v in boxes[category + 1])
            name, box = self._metadata.categories[category], [x0, y0, x1 - x0, y1 - y0]
            entry = {"category_id": category, "class": name, "score": None, "bbox": box}
            found.append({**entry, "area": int(areas[category + 1])})
        return found


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


def _categories(result: PhotoResult) -> list[int]:
    """Return the class index of each entry of :meth:`ResultEncoder.segments`."""
    if isinstance(result, Panoptic):
        return [s.category for s in result.segments if not s.iscrowd]
    if isinstance(result, Detections):
        return [d.category for d in result]
    if isinstance(result, SemanticMap):
        return np.flatnonzero(count_classes(result.classes)[:VOID]).tolist()
    return [category for _, category, _, _ in result.shares()]


def _index_map(result: PhotoResult, shape: tuple[int, int]) -> np.ndarray:
    """Return for each pixel the number of its segment from 1, in the order of :meth:`ResultEncoder.segments`; 0 void.

    Of objects that overlap, that of the highest score, or without masks the smallest box, is on top.
    """
    if isinstance(result, Panoptic):
        shown = [s.id for s in result.segments if not s.iscrowd]
        ids = result.id_map
    elif isinstance(result, SemanticMap):
        shown = _categories(result)
        ids = result.classes
    elif isinstance(result, Detections):
        return resize_nearest(_painted(result), shape)
    else:
        return np.zeros(shape, np.int32)
    small = resize_nearest(ids, shape)
    index = np.zeros(max(int(small.max(initial=0)), *shown, 0) + 1, np.int32)
    index[shown] = np.arange(1, len(shown) + 1)
    return index[small]


def _painted(result: Detections) -> np.ndarray:
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
    return ids
