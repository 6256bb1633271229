"""Serve a trained model over HTTP.

    seamseg serve runs/city
    seamseg serve city.onnx --port 8080 --batch-size 8 --batch-wait 5
    curl --data-binary @street.jpg 'http://127.0.0.1:8000/predict'
    curl -F file=@street.jpg 'http://127.0.0.1:8000/predict?format=overlay' -o overlay.jpg

MODEL is anything that `seamseg predict` takes. The server is reachable from this machine only, unless --host says
otherwise; it has neither passwords nor encryption, which are the business of a reverse proxy.

  GET  /         a page to drop a photo on
  POST /predict  a photo as the body, or as `file` of a form; in the query `format`:
                   json     segments, objects or classes with class, score, bbox and area (default)
                   png      panoptic: the id image of COCO (R + 256 G + 65536 B); semantic: class indices with a palette
                   overlay  JPEG, as `seamseg predict` writes it
                   view     JSON for the page, which may change
  GET  /health   200 with the model and its kind while it serves
  GET  /metrics  for Prometheus

Photos that arrive while others are computed form the next batch. SIGTERM and Ctrl-C end the server after the requests
in progress, within --timeout; the second time at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamseg.cli.model_options import add_model_options, check_model, inference_options
from seamseg.utils.errors import require_packages

if TYPE_CHECKING:
    from seamseg.inference.predictor import Predictor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help="zip, folder, snapshot, .onnx, .pt2 or hf://user/repo")
    add_model_options(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, metavar="N", help="0 for any free one (default: 8000)")
    server.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="photos of equal network size that are computed together, at most (default: 4 on a GPU, 1 elsewhere)",
    )
    server.add_argument(
        "--batch-wait",
        type=float,
        default=0.0,
        metavar="MS",
        help="milliseconds that an incomplete batch waits for more photos while the network is idle (default: 0)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--queue", type=int, default=32, metavar="N", help="requests in progress, others get 503 (default: 32)"
    )
    limits.add_argument("--max-upload", type=float, default=32.0, metavar="MIB", help="of a photo (default: 32)")
    limits.add_argument("--max-megapixels", type=float, default=50.0, metavar="N", help="of a photo (default: 50)")
    limits.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds of a request, then 504 (default: 60)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve; return 0 after a signal, or 1 if requests in progress were cut off."""
    # starlette needs python_multipart for the first form only
    require_packages("starlette", "uvicorn", "python_multipart", "prometheus_client", extra="serve")
    check_model(args.model, args.config, args.meta, args.set, args.device)
    from seamseg.checkpoints.model_path import local_model
    from seamseg.inference.predictor import load_predictor
    from seamseg.serve.app import ServeOptions, Service, build_app
    from seamseg.serve.server import AppServer, accepted_hosts, address_of, bind
    from seamseg.utils.parallel import call_in_thread

    # a line for each broken form
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    batch_size = 1 if args.batch_size is None else args.batch_size
    options = ServeOptions(batch_size, args.batch_wait, args.queue, args.max_upload, args.max_megapixels, args.timeout)
    with bind(args.host, args.port) as bound:
        settings = inference_options(args)
        # outside the thread: Ctrl-C ends a download at once
        model = local_model(args.model)
        # in a thread that ends, with its OpenMP threads: one of the service runs the network
        predictor = call_in_thread(
            lambda: _warmed_up(load_predictor(model, args.device, args.config, args.meta, settings))
        )
        if args.batch_size is None and predictor.network.on_gpu:
            options = replace(options, batch_size=4)
        service = Service(predictor, Path(args.model).name, options, args.debug)
        line = f"serving {service.name} ({predictor.kind}, {predictor.network.device}) at {address_of(bound)}"
        app = build_app(service, accepted_hosts(bound))
        server = AppServer(app, lambda: print(line, flush=True), options.timeout)
        try:
            server.run_on(bound)
        finally:
            # nobody waits any more for what the threads still compute
            closing = threading.Thread(target=service.close, daemon=True)
            closing.start()
            with suppress(KeyboardInterrupt):
                closing.join(0.1 if server.force_exit else 2)
    cut_off = service.cut_off + server.cut_off
    if cut_off:
        print(f"{cut_off} requests in progress were cut off", file=sys.stderr)
    code = 1 if cut_off else 0
    if closing.is_alive():
        # Python's end would wait for a photo, or abort in the middle of an operator
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def _warmed_up(predictor: Predictor[Any]) -> Predictor[Any]:
    """Run the network once: a device that fails ends the command, and the first request does not wait."""
    from PIL import Image

    predictor.predict(Image.new("RGB", (640, 480)), keep_photo=False)
    return predictor
