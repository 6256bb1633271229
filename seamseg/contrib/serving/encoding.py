"""Results of images as the content of HTTP responses: JSON, id image, overlay, and what the page shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import class_infos
from seamseg.maps.images import pixels_of
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.report.images import encode_index_map, encode_jpeg, reduced_shape
from seamseg.maps.visualize.maps import draw_map, encode_map
from seamseg.maps.visualize.overlay import distinct_colors
from seamseg.predicting.writers.images import OverlayWriter
from seamseg.results import ImageResult

VIEW_SIZE = 1280
"""Longest side in pixels of what the page shows."""

JSON, PNG, JPEG, ARRAY = "application/json", "image/png", "image/jpeg", "application/octet-stream"

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
        metadata = predictor.metadata
        # classifiers have no colours
        colors = metadata.palette or distinct_colors(metadata.num_classes).tolist()
        infos = zip(class_infos(metadata), colors, strict=True)
        self._classes = [{"name": c.name, "isthing": c.isthing, "color": list(rgb)} for c, rgb in infos]
        self._encoders: dict[str, _Encoder] = {
            "json": self._json,
            **({"png": self._png} if predictor.result_type.has_ids else {}),
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
        return _json({"kind": self._predictor.kind, **result.to_json()})

    def _png(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        return Content(result.id_png(), PNG)

    def _overlay(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        # the content of the file that `predict` writes
        writer, buffer = OverlayWriter(Path(), self._predictor.metadata), BytesIO()
        writer.encode(writer.image(pixels_of(decode()), prediction, result), buffer)
        return Content(buffer.getvalue(), JPEG)

    def _map(self, name: str, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        spec = self._predictor.map_formats[name]
        return Content(encode_map(prediction.maps[name], spec, result.size), PNG if spec.ending == ".png" else ARRAY)

    def _view(self, result: ImageResult, prediction: ArrayPrediction, decode: Decode) -> Content:
        shape = reduced_shape(*result.size, VIEW_SIZE)
        named: list[dict[str, Any]] = []
        for category, entry in result.entries():
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
                "map": encode_index_map(result.index_map(shape), len(named)),
                "maps": maps,
                "segments": named,
                "formats": [name for name in self.formats if name != "view"],
            }
        )


def _json(content: Any) -> Content:
    return Content(json.dumps(content, allow_nan=False, separators=(",", ":")).encode(), JSON)
