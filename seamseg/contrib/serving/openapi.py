"""The description of the routes as OpenAPI 3.1, from which clients are generated; tests compare it with the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seamseg.version import __version__

ERRORS = {
    400: "no image, a broken one, or one of too many pixels; an unfit format; an unknown host",
    403: "sent by a browser for a page of another site",
    408: "the upload took too long",
    413: "the upload, or the image, is too large",
    500: "the network failed",
    503: "too many requests are in progress, with Retry-After; or the server is stopped",
    504: "no result in time",
}
"""Statuses of `POST /predict` other than 200."""

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_IMAGE = {"type": "string", "contentMediaType": "application/octet-stream"}
_OBJECTS = {"type": "array", "items": {"$ref": "#/components/schemas/Object"}}

_SCHEMAS: dict[str, Any] = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
    "Object": {
        "type": "object",
        "description": "A segment, an object, or a class of the image.",
        "required": ["category_id", "class"],
        "properties": {
            "id": {"type": "integer", "description": "panoptic: its value in the id image of format=png"},
            "category_id": {"type": "integer"},
            "class": _TEXT,
            "score": {"type": ["number", "null"]},
            "bbox": {**_NUMBERS, "description": "x, y, width, height in pixels"},
            "area": {"type": "number", "description": "in pixels"},
            "segmentation": {"type": "object", "description": "instance segmentation: run lengths of COCO"},
        },
    },
    "Result": {
        "type": "object",
        "required": ["kind", "width", "height"],
        "properties": {
            "kind": _TEXT,
            "width": {"type": "integer"},
            "height": {"type": "integer"},
            "segments": _OBJECTS,
            "objects": _OBJECTS,
            "classes": {"type": "array", "items": {"type": "object"}},
        },
    },
}


def openapi_document(formats: Sequence[str]) -> dict[str, Any]:
    """Return the document of a server whose model has these formats, the default first."""
    form = {"type": "object", "required": ["file"], "properties": {"file": _IMAGE}}
    result = {
        "application/json": {"schema": {"$ref": "#/components/schemas/Result"}},
        **{kind: {"schema": _IMAGE} for kind in ("image/png", "image/jpeg", "application/octet-stream")},
    }
    predict = {
        "summary": "Predict an image: the body, or `file` of a form.",
        "operationId": "predict",
        "parameters": [
            {"name": "format", "in": "query", "schema": {**_TEXT, "enum": list(formats), "default": formats[0]}}
        ],
        "requestBody": {
            "required": True,
            "content": {"image/*": {"schema": _IMAGE}, "multipart/form-data": {"schema": form}},
        },
        "responses": {
            "200": {"description": "the result", "content": result},
            **{str(status): _answer(text, "application/json", "Error") for status, text in ERRORS.items()},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "seamseg serve", "version": __version__},
        "paths": {
            "/": {"get": _get("page", "A page to drop an image on.", "text/html")},
            "/health": {"get": _get("health", "Model, kind, device and formats; 503 at the end.", "application/json")},
            "/metrics": {"get": _get("metrics", "Metrics for Prometheus.", "text/plain")},
            "/openapi.json": {"get": _get("openapi", "This document.", "application/json")},
            "/predict": {"post": predict},
        },
        "components": {"schemas": _SCHEMAS},
    }


def _get(name: str, summary: str, media_type: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": name, "responses": {"200": _answer(summary, media_type)}}


def _answer(description: str, media_type: str, schema: str = "") -> dict[str, Any]:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}} if schema else {}
    return {"description": description, "content": {media_type: content}}
