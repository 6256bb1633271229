"""The description of the routes as OpenAPI 3.1, from which clients are generated; tests compare it with the routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seamseg.version import __version__

ERRORS = {
    400: "no image, a broken one, or one of too many pixels; an unfit format; an unknown host",
    408: "the upload took too long",
    413: "the upload, or the image, is too large",
    500: "the network failed",
    503: "too many requests are in progress, with Retry-After; or the server is stopped",
    504: "no result in time",
}
"""Statuses of `POST /predict` other than 200."""

_PAGES = {
    "/": ("A page to drop an image on.", "text/html"),
    "/health": ("Model, kind, device and formats.", "application/json"),
    "/metrics": ("Metrics for Prometheus.", "text/plain"),
    "/openapi.json": ("This document.", "application/json"),
}
_OBJECT = {"id": "integer", "category_id": "integer", "class": "string", "area": "number", "segmentation": "object"}


def openapi_document(formats: Sequence[str]) -> dict[str, Any]:
    """Return the document of a server whose model has these formats, the default first."""
    image = {"type": "string", "contentMediaType": "application/octet-stream"}
    images = {kind: {"schema": image} for kind in ("image/png", "image/jpeg", "application/octet-stream")}
    result = {"application/json": {"schema": {"$ref": "#/components/schemas/Result"}}, **images}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    form = {**_properties({"file": image}), "required": ["file"]}
    choice = {"type": "string", "enum": list(formats), "default": formats[0]}
    predict = {
        "summary": "Predict an image: the body, or `file` of a form.",
        "operationId": "predict",
        "parameters": [{"name": "format", "in": "query", "schema": choice}],
        "requestBody": {
            "required": True,
            "content": {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}},
        },
        "responses": {
            "200": {"description": "the result", "content": result},
            **{str(status): {"description": text, "content": error} for status, text in ERRORS.items()},
        },
    }
    pages = {
        path: {"get": {"summary": text, "responses": {"200": {"description": text, "content": {media: {}}}}}}
        for path, (text, media) in _PAGES.items()
    }
    boxes = {"type": "array", "items": {"type": "number"}, "description": "x, y, width, height in pixels"}
    found = {"type": "array", "items": _properties({**_OBJECT, "score": ["number", "null"], "bbox": boxes})}
    lists = {"segments": found, "classes": {"type": "array", "items": {"type": "object"}}}
    schemas = {
        "Error": _properties({"error": "string"}),
        "Result": _properties({"kind": "string", "width": "integer", "height": "integer", **lists}),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "seamseg serve", "version": __version__},
        "paths": {**pages, "/predict": {"post": predict}},
        "components": {"schemas": schemas},
    }


def _properties(types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object, from schemas or types."""
    given = {name: one if isinstance(one, dict) else {"type": one} for name, one in types.items()}
    return {"type": "object", "properties": given}
