"""Upload a trained model to the Hugging Face Hub, with a model card.

    hf auth login
    seamseg push runs/city user/city --licence cc-by-4.0
    seamseg evaluate runs/city DATA --json scores.json
    seamseg push runs/city user/city --licence cc-by-4.0 --dataset cityscapes --scores scores.json
    seamseg push runs/city user/city --dry-run card/
    seamseg predict hf://user/city photos/ out/

The repository, which is created if it does not exist, gets the files of `seamseg convert-model` and README.md, in one
commit. The header of README.md states task, library, licence, data sets and, with --scores, the scores, as
`model-index`. An earlier README.md is replaced: edit it on the hub after the last upload, or write it with --dry-run
and upload the folder with `hf upload`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.contrib.deploy.options import CardOptions, ConversionOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "model", metavar="MODEL", help="published zip, run folder, snapshot, converted folder; also of a classifier"
    )
    parser.add_argument("repo", metavar="USER/REPO", help="repository on the hub")
    add_options(parser, ConversionOptions)
    add_options(parser, CardOptions)
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("--dry-run", metavar="DIR", help="write the files to this folder instead of uploading")


def run(args: argparse.Namespace) -> int:
    """Upload the model, and print where it is."""
    require_packages("huggingface_hub", "safetensors")
    check_model(args.model)
    from seamseg.contrib.deploy.model_card import push_model

    conversion, card = options_of(args, ConversionOptions), options_of(args, CardOptions)
    uri = push_model(args.model, args.repo, conversion, card, args.private, args.dry_run)
    if uri is not None:
        echo(uri)
        return 0
    for file in sorted(Path(args.dry_run).iterdir()):
        echo(file)
    return 0
