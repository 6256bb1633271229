"""`seamseg evaluate --protocol cityscapes`: a folder of results against the raw ground truth of Cityscapes."""

from __future__ import annotations

import argparse

from seamseg.utils.errors import InputError

_TAKEN = ("command", "gt", "pred", "protocol", "workers", "json", "quiet", "debug")
"""What the protocol makes use of; whatever else was given is said to be of no use."""


def run_cityscapes(args: argparse.Namespace, workers: int) -> int:
    """Evaluate with so many threads, print the tables, write the JSON."""
    from seamseg.evaluation.cityscapes import evaluate_cityscapes, format_cityscapes
    from seamseg.utils.files import write_json
    from seamseg.utils.progress import progress

    if extra := _useless(args):
        raise InputError(f"{extra} does not go with --protocol cityscapes, which takes --gt, --pred, --workers, --json")
    if args.gt is None or args.pred is None:
        raise InputError("--protocol cityscapes needs --gt, as gtFine/val, and --pred, a folder of results")
    scores = evaluate_cityscapes(args.gt, args.pred, workers, progress)
    if args.json is not None:
        write_json(args.json, scores.to_json(), indent=2)
    print(format_cityscapes(scores), flush=True)
    return 0


def _useless(args: argparse.Namespace) -> str | None:
    """The first option of the command that was given in vain, as it is written."""
    for name, value in vars(args).items():
        if name not in _TAKEN and value not in (None, False, []):
            return name.upper() if name in ("model", "data") else "--" + name.replace("_", "-")
    return None
