"""Export a trained model to a file that runs without this package.

    seamseg export runs/city city.onnx
    seamseg export model.zip city.onnx --size 1024x2048 --check street.jpg
    seamseg export runs/city int8.onnx --int8 data/city --data data/city
    seamseg export runs/city_qat int8.onnx
    seamseg export runs/city dense.onnx --part dense
    seamseg export runs/things classifier.onnx
    seamseg export hf://tue-mps/coco_panoptic_eomt_large_640 eomt.onnx
    seamseg predict city.onnx photos/ out/

The ending of the file decides the format: .onnx runs in ONNX Runtime, OpenVINO and others, and in `seamseg predict`
and `seamseg evaluate` without PyTorch; .pt2 is machine code for this kind of CPU, which PyTorch runs, also in a C++
program without Python (docs/how-to/aotinductor.md). The file is then compared with the network, on the images of
--check or on a generated image. Inputs and outputs: docs/how-to/deploy.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from seamseg.cli.model_options import add_options, check_model, options_of
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_options(parser, ExportOptions)
    parser.add_argument("--data", metavar="DATA", help="data set folder: also score the network and the file on it")
    parser.add_argument("--split", help="split of --data (default: val_set of the configuration)")


def run(args: argparse.Namespace) -> int:
    """Export, compare and print the table."""
    options = options_of(args, ExportOptions)
    if args.split is not None and args.data is None:
        raise InputError("--split is the split of --data, which is not given")
    if args.data is not None:
        if args.part == "dense":
            raise InputError("--data: the dense part of a network has no scores")
        from seamseg.maps.folder import find_metadata

        find_metadata(args.data)
    check_model(args.model)
    if args.out.endswith(".onnx"):
        require_packages("onnx", "onnxscript", "onnxruntime", what=args.out, extra="export")
    from seamseg.contrib.deploy.export import export_model, format_rows

    report = export_model(options)
    rows = report.rows()
    if args.data is not None:
        rows += _scores(args, report.metadata.size)
    echo(format_rows(rows), flush=True)
    return 0


def _scores(args: argparse.Namespace, max_size: tuple[int, int] | None) -> list[tuple[str, str]]:
    """Score the network and the file on a data set, at the size of the file."""
    from seamseg.validation.evaluate import evaluate_model
    from seamseg.validation.options import EvaluationOptions

    given: dict[str, Any] = {"data": args.data, "split": args.split, "device": "cpu", "quiet": args.quiet}
    own = {"config": args.config, "meta": args.meta, "overrides": args.overrides}
    network = evaluate_model(EvaluationOptions(args.model, **given, **own), max_size).scores
    file = evaluate_model(EvaluationOptions(args.out, **given)).scores
    return [("scores, network", network.line()), ("scores, file", file.line())]
