"""The ASGI application: routes and their description, limits of uploads and of time, errors as JSON, metrics."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, exposition
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from seamseg.contrib.serving.batching import Batcher
from seamseg.contrib.serving.encoding import Content, ResultEncoder
from seamseg.contrib.serving.options import ServeOptions
from seamseg.inference.images import PreparedImage, prepare_image
from seamseg.inference.predictor import Predictor
from seamseg.maps.images import open_image
from seamseg.maps.report.page import Page, page_frame
from seamseg.utils.errors import InputError, lacks_memory, one_line
from seamseg.utils.limits import MIB, format_bytes
from seamseg.utils.output import echo
from seamseg.utils.parallel import share_cores
from seamseg.version import __version__

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")

PAGE = Page("seamseg.contrib.serving", ("helpers", "maps", "serve"), ("style", "serve"), connects=True)

UPLOAD = "image"
"""Name of the upload in messages."""

DISCONNECTED = 499
"""Status in the metrics of a request whose client went away, as of nginx; it is never sent."""


class Metrics:
    """Metrics of a server, in the text format of Prometheus."""

    def __init__(self) -> None:
        # a line with the time of creation for each of the others
        disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "seamseg_requests", "Requests by path and HTTP status.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "seamseg_request_seconds",
            "Time of predictions, from the start of the request to the result.",
            registry=registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100),
        )
        self.batch_size = Histogram(
            "seamseg_batch_size", "Images of each batch.", registry=registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.in_progress = Gauge("seamseg_in_progress", "Predictions requested and not answered.", registry=registry)
        self.waiting = Gauge("seamseg_queue_length", "Images that wait for the network.", registry=registry)


class Service:
    """The routes, for a predictor that only this service uses; `cut_off` counts requests that the end cut off."""

    def __init__(self, predictor: Predictor[Any], name: str, options: ServeOptions, debug: bool = False) -> None:
        self.options = options
        self.cut_off = 0
        self.name = name
        self._debug = debug
        self.metrics = Metrics()
        self._encoder = ResultEncoder(predictor)
        self._network = predictor.network
        self._kind = predictor.kind
        self._prepare = partial(prepare_image, input_size=predictor.input_size)
        # no format of a panoptic network reads its detections
        predictor.map_only = True
        self._max_pixels = int(options.max_megapixels * 1e6)
        self._batcher = Batcher(predictor, options.batch_size, self.metrics.batch_size.observe)
        self.metrics.waiting.set_function(lambda: self._batcher.waiting)
        # decode and encode beside the network; their number bounds the memory of whole images
        self._threads = ThreadPoolExecutor(share_cores().decoders, "images")
        self._in_progress = 0
        limit = f"{options.max_upload:g} MiB, {options.max_megapixels:g} megapixels"
        self._page = "".join(page_frame(f"{self.name} · seamseg", PAGE, limit=limit))

    def close(self) -> None:
        """End the threads."""
        self._batcher.close()
        self._threads.shutdown()

    async def page(self, request: Request) -> Response:
        """`GET /`."""
        # a policy in the markup cannot forbid frames
        return HTMLResponse(self._page, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    async def health(self, request: Request) -> Response:
        """`GET /health`."""
        ready = self._batcher.alive
        content = {
            "status": "ready" if ready else "stopping",
            "model": self.name,
            "kind": self._kind,
            "device": str(self._network.device),
            "precision": self._network.precision,
            "formats": self._encoder.formats,
            "version": __version__,
        }
        return JSONResponse(content, 200 if ready else 503)

    async def show_metrics(self, request: Request) -> Response:
        """`GET /metrics`."""
        text = exposition.generate_latest(self.metrics.registry)
        return Response(text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})

    async def openapi(self, request: Request) -> Response:
        """`GET /openapi.json`."""
        return JSONResponse(openapi_document(self._encoder.formats))

    async def predict(self, request: Request) -> Response:
        """`POST /predict`."""
        start = time.perf_counter()
        try:
            with self.metrics.in_progress.track_inprogress():
                content = await self._predict(request)
        except ClientDisconnect:
            return Response(status_code=DISCONNECTED)
        except asyncio.CancelledError:
            # uvicorn cancels a request only at its end; it would print a traceback of what is raised
            self.cut_off += 1
            return JSONResponse({"error": "the server was stopped before the result"}, 503)
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        except HTTPException:
            await _discard_upload(request)
            raise
        except Exception as error:
            if self._debug:
                echo("".join(traceback.format_exception(error)), file=sys.stderr)
            echo(f"POST /predict: {type(error).__name__}: {one_line(error)[:300]}", file=sys.stderr, flush=True)
            if not lacks_memory(error):
                raise HTTPException(500, "the prediction failed; the log of the server has the reason") from error
        else:
            self.metrics.seconds.observe(time.perf_counter() - start)
            return Response(content.data, media_type=content.media_type)
        # after the handler: the error keeps arrays alive
        raise HTTPException(413, f"{UPLOAD}: not enough memory for its size: send a smaller one")

    async def _predict(self, request: Request) -> Content:
        name = request.query_params.get("format", self._encoder.formats[0])
        if name not in self._encoder.formats:
            known = ", ".join(self._encoder.formats)
            raise HTTPException(400, f"format={name[:40]}: a model of kind {self._kind} has {known}")
        # also bounds the memory of uploads
        if self._in_progress >= self.options.queue:
            busy = f"busy: {self._in_progress} requests are in progress, try again later"
            raise HTTPException(503, busy, {"Retry-After": "1"})
        seconds = self.options.timeout
        end = time.perf_counter() + seconds
        self._in_progress += 1
        try:
            data = await _in_time(self._upload(request), end, 408, f"the upload took more than {seconds:g} seconds")
            return await _in_time(self._compute(name, data), end, 504, f"no result within {seconds:g} seconds")
        finally:
            self._in_progress -= 1

    async def _upload(self, request: Request) -> bytes:
        """Read the image: the body, or the file `file` of a form."""
        limit = int(self.options.max_upload * MIB)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            data = await _file_of_form(request, limit)
        else:
            data = b"".join([block async for block in _limited(request, limit)])
        if not data:
            raise HTTPException(400, f"{UPLOAD}: empty: send an image as the body, or as `file` of a form")
        if len(data) > limit:
            raise _too_large(limit)
        return data

    async def _compute(self, name: str, data: bytes) -> Content:
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._threads, self._decode, data)
        prediction = await asyncio.wrap_future(self._batcher.submit(image.pixels))
        encode = partial(self._encoder.encode, name, prediction, image.size, partial(self._open, data))
        return await loop.run_in_executor(self._threads, encode)

    def _open(self, data: bytes) -> Image.Image:
        return open_image(UPLOAD, data, max_pixels=self._max_pixels)

    def _decode(self, data: bytes) -> PreparedImage:
        return self._prepare(self._open(data))


def build_app(service: Service, hosts: Sequence[str] = ("*",)) -> Starlette:
    """Return the application for names in the header `Host`: pages could reach it by others (DNS rebinding)."""
    routes = [
        Route("/", service.page, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/metrics", service.show_metrics, methods=["GET"]),
        Route("/openapi.json", service.openapi, methods=["GET"]),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    paths = {route.path for route in routes}
    origins = service.options.origins
    cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"])
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_CountAndProtect, service.metrics.requests, paths),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            *([cors] if origins else []),
        ],
        exception_handlers={HTTPException: _as_json},
    )


async def _as_json(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _CountAndProtect:
    """Counts responses by their status, and adds headers that restrict browsers."""

    def __init__(self, app: ASGIApp, requests: Counter, paths: set[str]) -> None:
        self._app = app
        self._requests = requests
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._requests.labels(path, str(message["status"])).inc()
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Cache-Control"] = "no-store"
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self._app(scope, receive, send_counted)


_FORM_BYTES = 64 << 10
"""Size of a form beside its image."""

_DISCARD_SECONDS = 5
"""Seconds that the rest of a refused upload is read."""


class _InMemory(MultiPartParser):
    """Keeps files in memory, whose size is limited before: images do not reach the disk."""

    spool_max_size = sys.maxsize


async def _file_of_form(request: Request, limit: int) -> bytes:
    parser = _InMemory(
        request.headers,
        _limited(request, limit, _FORM_BYTES),
        max_files=1,
        max_fields=8,
        max_part_size=_FORM_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"broken form: {error.message}") from None
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile):
            given = f"; it has {', '.join(one_line(name)[:40] for name in form)}" if form else ""
            raise HTTPException(400, f"the form has no file named `file` with a `filename=`{given}")
        return await file.read()
    finally:
        await form.close()


async def _limited(request: Request, limit: int, beside: int = 0) -> AsyncGenerator[bytes, None]:
    size = 0
    async for block in request.stream():
        size += len(block)
        if size > limit + beside:
            raise _too_large(limit)
        yield block


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"{UPLOAD}: is larger than {format_bytes(limit)}, the limit of an upload")


async def _discard_upload(request: Request) -> None:
    """Read what is left of a refused upload: many clients send all of it before they read the answer."""

    async def read() -> None:
        async for _ in request.stream():
            pass

    if "expect" in request.headers:  # the client waits for a go-ahead
        return
    # RuntimeError: all has been read; cancelled at the end of the server, when the answer goes out all the same
    with suppress(ClientDisconnect, RuntimeError, asyncio.TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(read(), _DISCARD_SECONDS)


async def _in_time(work: Coroutine[Any, Any, T], end: float, status: int, problem: str) -> T:
    """Return the result of `work`, which is cancelled at the time `end`: what waits for the network is dropped."""
    try:
        return await asyncio.wait_for(work, max(0.0, end - time.perf_counter()))
    except asyncio.TimeoutError:
        raise HTTPException(status, problem) from None


_ERRORS = {
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
            **{str(status): {"description": text, "content": error} for status, text in _ERRORS.items()},
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
