"""Servers on free ports, a network that waits and fails as a test wants, and clients."""

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from seamseg.contrib.serving.app import Service, build_app
from seamseg.contrib.serving.options import ServeOptions
from seamseg.contrib.serving.server import AppServer, accepted_hosts, bind
from seamseg.data.input_size import InputSize
from seamseg.inference.options import Tiling
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import InferenceNetwork, Prediction
from seamseg.results import Thresholds, result_of

CLASSES = Metadata(3, 0, ["road", "sky", "tree"], [(128, 64, 128), (70, 130, 180), (107, 142, 35)], [7, 23, 21])
FAILS = 250
"""An image whose first pixel has this red value makes the network fail."""


class RedNetwork(InferenceNetwork):
    """A semantic network: the class of a pixel is its red value. It waits at a gate, and remembers its batches."""

    kind, result_type, precision, device = "semantic", result_of("semantic"), "fp32", "cpu"
    uses_torch = False

    def __init__(self, classes: Metadata = CLASSES) -> None:
        self.classes = classes
        self.gate, self.started = threading.Event(), threading.Semaphore(0)
        self.batches: list[list[tuple[int, int]]] = []
        self.seen: list[int] = []

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[Prediction]:
        self.batches.append([image.shape[:2] for image in images])
        self.seen += [int(image[0, 0, 1]) for image in images]
        self.started.release()
        assert self.gate.wait(120), "nobody opened the gate"
        if any(image[0, 0, 0] == FAILS for image in images):
            raise ValueError("a red pixel")
        nothing = np.zeros(0, np.float32)
        none = (nothing.reshape(0, 4), nothing.astype(np.int64), nothing, None)
        maps = [np.where(image[..., 0] < self.classes.num_classes, image[..., 0], VOID) for image in images]
        return [Prediction(*none, found.astype(np.uint8), found.shape) for found in maps]


def ready_network(classes: Metadata = CLASSES) -> RedNetwork:
    network = RedNetwork(classes=classes)
    network.gate.set()
    return network


def red_predictor(network: RedNetwork, tiling: Tiling = Tiling("off")) -> Predictor[Any]:  # noqa: B008  # frozen
    """A predictor of such a network, whose input has the size of the image."""
    return Predictor(network, network.classes, InputSize(), Thresholds(), tiling)


def photo(number: int = 0, red: int = 1, size: tuple[int, int] = (12, 20)) -> np.ndarray:
    """An image of one class; `number` is its green value."""
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = red, number
    return pixels


def png(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    port: int
    service: Service
    server: AppServer | None = None

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def predict(self, data: Any, query: str = "", **headers: str) -> Answer:
        return self.request("POST", f"/predict{query}", data, {k.replace("_", "-"): v for k, v in headers.items()})

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0


@contextmanager
def serving(predictor: Predictor[Any], grace: float = 10, name: str = "test.onnx", **options: Any) -> Iterator[Client]:
    bound = bind("127.0.0.1", 0)
    service = Service(predictor, name, ServeOptions("model", **options))
    started = threading.Event()
    server = AppServer(build_app(service, accepted_hosts(bound)), started.set, grace)
    port = bound.getsockname()[1]
    thread = threading.Thread(target=server.run_on, args=(bound,))
    thread.start()
    try:
        assert started.wait(120)
        yield Client(port, service, server)
    finally:
        server.stop()
        if isinstance(predictor.network, RedNetwork):
            predictor.network.gate.set()
        thread.join(120)
        service.close()
        assert not thread.is_alive()


def in_thread(function: Any, *args: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*args, **options)))
    thread.start()
    return thread, results
