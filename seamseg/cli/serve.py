"""Serve a trained model over HTTP.

    seamseg serve runs/city
    seamseg serve city.onnx --port 8080 --batch-size 8
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
  GET  /openapi.json  these routes as OpenAPI

Images that arrive while others are computed form the next batch. SIGTERM and Ctrl-C end the server after the requests
in progress, within --timeout; the second time at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.contrib.serving.options import ServeOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, ServeOptions, without=("probabilities",))


def run(args: argparse.Namespace) -> int:
    """Serve; return 0 after a signal, or 1 if requests in progress were cut off."""
    # starlette needs python_multipart for the first form only
    require_packages("starlette", "uvicorn", "python_multipart", "prometheus_client", extra="serve")
    check_model(args.model, args.device)
    from seamseg.contrib.serving.server import serve_model

    end = serve_model(options_of(args, ServeOptions), args.debug)
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
