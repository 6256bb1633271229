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
import re
from dataclasses import fields
from typing import Any

from seamseg.cli.model_options import add_foreign_model_options, check_model
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "model", metavar="MODEL", help="zip, folder, snapshot or hf://user/repo; also of a classifier or transformers"
    )
    parser.add_argument("out", metavar="OUT", help="file to write, *.onnx or *.pt2")
    parser.add_argument(
        "--size",
        metavar="HxW",
        help="fixed input of the network: images are scaled as usual, shrunk to fit, and padded (default: free; for "
        "networks that need a fixed size, that of an image twice as wide as high)",
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="free height and width also of a classifier or a dense part"
    )
    parser.add_argument(
        "--part", choices=("all", "dense"), default="all", help="dense: pyramid, RPN and semantic logits only"
    )
    parser.add_argument("--precision", default="fp32", metavar="P", help="compute type of the file (default: fp32)")
    parser.add_argument(
        "--int8", metavar="DATA", help="quantise to int8, calibrated with images of this data set folder"
    )
    parser.add_argument(
        "--calibrate", type=int, metavar="N", help="images of --int8, evenly spaced in its train_set (default: 64)"
    )
    parser.add_argument("--opset", type=int, metavar="N", help="version of the operators of an ONNX file (default: 20)")
    parser.add_argument(
        "--check", nargs="+", default=[], metavar="PHOTO", help="images to compare the file with the network on"
    )
    parser.add_argument("--data", metavar="DATA", help="data set folder: also score the network and the file on it")
    parser.add_argument("--split", help="split of --data (default: val_set of the configuration)")
    parser.add_argument(
        "--licence",
        default="",
        metavar="TEXT",
        help="licence of the weights, stated in the file (default: that of the model card, for transformers)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_foreign_model_options(parser)


def run(args: argparse.Namespace) -> int:
    """Export, compare and print the table."""
    size = None if args.size is None else _size(args.size)
    if args.split is not None and args.data is None:
        raise InputError("--split is the split of --data, which is not given")
    if args.calibrate is not None and args.int8 is None:
        raise InputError("--calibrate is the number of images of --int8, which is not given")
    if args.data is not None:
        if args.part == "dense":
            raise InputError("--data: the dense part of a network has no scores")
        from seamseg.data.folder import find_metadata

        find_metadata(args.data)
    check_model(args.model, args.config, args.meta)
    if args.out.endswith(".onnx"):
        require_packages("onnx", "onnxscript", "onnxruntime", what=args.out, extra="export")
    from seamseg.deploy.export import export_model, format_rows
    from seamseg.deploy.source import ExportOptions

    names = {field.name for field in fields(ExportOptions)} - {"size"}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    report = export_model(args.model, args.out, ExportOptions(size, **given))
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


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, for example 1024x2048")
    return int(match[1]), int(match[2])
