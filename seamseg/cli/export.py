"""Export a trained model to a file that runs without this package.

    seamseg export runs/city city.onnx
    seamseg export model.zip city.onnx --size 1024x2048 --check street.jpg
    seamseg export runs/city int8.onnx --int8 data/city
    seamseg export runs/city dense.onnx --part dense
    seamseg export runs/things classifier.onnx
    seamseg export hf://tue-mps/coco_panoptic_eomt_large_640 eomt.onnx
    seamseg predict city.onnx photos/ out/

The ending of the file decides the format: .onnx runs in ONNX Runtime, OpenVINO and others, and in `seamseg predict`
and `seamseg evaluate` without PyTorch; .pt2 is machine code for this kind of CPU, which PyTorch runs, also in a C++
program without Python (docs/how-to/aotinductor.md). The file is then compared with the network, on the images of
--check or on a generated image; `seamseg evaluate` scores either on a data set. Inputs and outputs:
docs/how-to/deploy.md.
"""

from __future__ import annotations

import argparse

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_options(parser, ExportOptions)


def run(args: argparse.Namespace) -> int:
    """Export, compare and print the table."""
    options = options_of(args, ExportOptions)
    check_model(args.model)
    if args.out.endswith(".onnx"):
        require_packages("onnx", "onnxscript", "onnxruntime", what=args.out, extra="export")
    from seamseg.contrib.deploy.export import export_model

    echo(export_model(options), flush=True)
    return 0
