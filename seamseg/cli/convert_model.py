"""Write a trained model as a folder without pickles, to share it or to keep it.

    seamseg convert-model runs/city city/
    seamseg convert-model seamseg_r50_vistas.zip vistas/ --licence cc-by-nc-sa-4.0
    seamseg predict city/ photos/ out/

The folder holds model.safetensors (the tensors that inference uses, unchanged), config.ini, and metadata.json with
kind, licence and classes; that of a classifier config.json and classes.json instead of config.ini. It is a MODEL for
all commands, and F of `seamseg train --pre-train [PART:]F`. `seamseg push` uploads such a folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.contrib.deploy.options import ConversionOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "model", metavar="MODEL", help="published zip, run folder, snapshot or hf://user/repo; also of a classifier"
    )
    parser.add_argument("out", metavar="OUT", help="folder to write")
    add_options(parser, ConversionOptions)


def run(args: argparse.Namespace) -> int:
    """Convert the model and print a summary."""
    require_packages("safetensors")
    check_model(args.model)
    from seamseg.contrib.deploy.model_folder import convert_model
    from seamseg.utils.limits import format_bytes

    made = convert_model(args.model, args.out, options_of(args, ConversionOptions))
    for file in sorted(Path(args.out).iterdir()):
        echo(f"{file}  {format_bytes(file.stat().st_size)}")
    counts = f"{made.metadata.num_classes} classes, {made.num_parameters} parameters"
    echo(f"{made.kind}, {counts}, licence: {made.licence or 'not stated (--licence)'}")
    return 0
