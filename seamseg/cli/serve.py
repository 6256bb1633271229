"""Serve a trained model over HTTP.

    seamseg serve runs/city
    seamseg serve city.onnx --port 8080 --batch-size 8 --batch-wait 5
    curl --data-binary @street.jpg 'http://127.0.0.1:8000/predict'
    curl -F file=@street.jpg 'http://127.0.0.1:8000/predict?format=overlay' -o overlay.jpg

MODEL is anything that `seamseg predict` takes. The server is reachable from this machine only, unless --host states
another address; it has neither passwords nor encryption: use a reverse proxy for these.

  GET  /         a page to drop an image on
  POST /predict  an image as the body, or as `file` of a form; in the query `format`:
                   json     segments, objects or classes with class, score, bbox and area (default)
                   png      panoptic: the id image of COCO (R + 256 G + 65536 B); semantic: class indices with a palette
                   overlay  JPEG, as `seamseg predict` writes it
                   view     JSON for the page, which may change
  GET  /health   200 with the model and its kind while it serves
  GET  /metrics  for Prometheus

Images that arrive while others are computed form the next batch. SIGTERM and Ctrl-C end the server after the requests
in progress, within --timeout; the second time at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress

from seamseg.cli.model_options import add_model_options, check_model, inference_options
from seamseg.utils.errors import require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="zip, folder, snapshot, torchvision:NAME, hf://user/repo, or a program you trust: .onnx, .pt2",
    )
    add_model_options(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, metavar="N", help="0 for any free one (default: 8000)")
    server.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="maximum number of images of equal network size computed together (default: 4 on a GPU, 1 elsewhere); "
        "each core of a CPU computes small images of its own, unless this is set to 1",
    )
    server.add_argument(
        "--batch-wait",
        type=float,
        default=0.0,
        metavar="MS",
        help="milliseconds that an incomplete batch waits for more images while the network is idle (default: 0)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--queue",
        type=int,
        default=32,
        metavar="N",
        help="maximum number of requests in progress, others get 503 (default: 32)",
    )
    limits.add_argument(
        "--max-upload",
        type=float,
        default=32.0,
        metavar="MIB",
        help="maximum size of an uploaded image in MiB (default: 32)",
    )
    limits.add_argument(
        "--max-megapixels",
        type=float,
        default=50.0,
        metavar="N",
        help="maximum size of an image in megapixels (default: 50)",
    )
    limits.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="maximum duration of a request in seconds, then 504 (default: 60)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve; return 0 after a signal, or 1 if requests in progress were cut off."""
    # starlette needs python_multipart for the first form only
    require_packages("starlette", "uvicorn", "python_multipart", "prometheus_client", extra="serve")
    check_model(args.model, args.config, args.meta, args.set, args.device)
    from seamseg.serving.app import ServeOptions
    from seamseg.serving.server import serve_model

    options = ServeOptions(
        args.batch_size, args.batch_wait, args.queue, args.max_upload, args.max_megapixels, args.timeout
    )
    model = (args.model, args.device, args.config, args.meta, inference_options(args))
    end = serve_model(*model, options, args.host, args.port, args.debug)
    if end.cut_off:
        echo(f"{end.cut_off} requests in progress were cut off", file=sys.stderr)
    code = 1 if end.cut_off else 0
    if end.is_computing:
        # Python's end would wait for an image, or abort in the middle of an operator
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code
