"""Run the whole pipeline on a generated toy data set, without a download.

    seamseg demo
    seamseg demo --out runs/longer --set scheduler.epochs=30

The demo renders street scenes in the layout of Cityscapes, converts them, trains a ResNet-18 panoptic network on a GPU
or the CPU, predicts 40 held-out scenes, evaluates PQ, and writes report.html. After an interruption, re-run the same
command to resume. The run folder is a model like any other, but knows the synthetic city only: on real images its
output is nonsense.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from seamseg.cli.main import add_set_and_device
from seamseg.config.loader import check_overrides
from seamseg.utils.errors import InputError
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), metavar="RUN", help="run folder (default: %(default)s)"
    )
    parser.add_argument("--train", type=int, default=560, metavar="N", help="training scenes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=40, metavar="N", help="held-out scenes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scenes (default: %(default)s)")
    add_set_and_device(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo and print the table of scores."""
    if args.train < 2 or args.val < 1:
        raise InputError(f"--train {args.train} --val {args.val}: at least 2 scenes to train on and 1 to evaluate")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("the demo starts its processes itself: start it without torchrun")
    check_overrides(args.overrides)
    from seamseg.demo import DemoOptions, run_demo

    options = DemoOptions(args.out, args.train, args.val, args.seed, tuple(args.overrides), args.device)
    scores = run_demo(options, lambda line: echo(line, flush=True))
    echo()
    echo(scores.table())
    echo()
    echo(f"open {args.out / 'report.html'}; all scores are in {args.out / 'metrics.json'}")
    return 0
