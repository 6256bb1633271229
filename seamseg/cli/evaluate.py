"""Score a model on a data set, or files of predictions against files of ground truth.

    seamseg evaluate runs/city DATA --split val --json metrics.json
    seamseg evaluate --gt panoptic_val.json --pred out/panoptic.json --json metrics.json
    seamseg evaluate --protocol cityscapes --gt gtFine/val --pred out/cityscapes --json metrics.json
    seamseg evaluate runs/city DATA --out runs/city/evaluation && seamseg report runs/city
    torchrun --nproc-per-node 4 -m seamseg evaluate runs/city DATA

PQ, SQ, RQ with the official COCO definition, PQ† of the Seamless paper and mIoU; for all classes, things, stuff, and
each class. The table is in percent, --json writes fractions 0-1. Files are in the COCO panoptic format; their PNGs lie
in the folder of the JSON's name without .json unless another one is named. With --protocol cityscapes a results folder
is scored as the benchmark's own tools do: what it has of panoptic.json, pixel/*.png and instance/*.txt.

--out keeps everything in a folder: predictions and ground truth as COCO panoptic files, which the official tools can
score again, the confusion matrix, and the scores of each image and the outcome of each segment. `seamseg report` draws
it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.utils.errors import InputError
from seamseg.utils.launcher import is_main_process
from seamseg.utils.parallel import available_cores

if TYPE_CHECKING:
    from seamseg.evaluation.scores import PanopticScores

_MODEL_OPTIONS = ("split", "config", "meta", "device", "set", "ap")
_FILE_OPTIONS = ("gt", "pred", "gt_folder", "pred_folder", "photos", "protocol", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    model = parser.add_argument_group("a model on a data set")
    model.add_argument("model", nargs="?", metavar="MODEL", help="published zip, run folder or snapshot")
    model.add_argument("data", nargs="?", metavar="DATA", help="data set folder, as `seamseg prepare` writes it")
    model.add_argument("--split", help="which images (default: val_set of the configuration)")
    model.add_argument("--config", metavar="INI", help="configuration of a snapshot that has none beside it")
    model.add_argument("--meta", metavar="BIN", help="metadata.bin of a snapshot that has none beside it")
    model.add_argument("--device", help="auto, cpu, cuda or cuda:N (default: auto)")
    model.add_argument("--set", action="append", metavar="SECTION.KEY=VALUE", help="change a configuration key")

    model.add_argument("--ap", action="store_const", const=True, help="COCO's box and mask AP of the detections, too")

    files = parser.add_argument_group("files in the COCO panoptic format")
    files.add_argument("--gt", metavar="JSON", help="ground truth (cityscapes: folder of a split, as gtFine/val)")
    files.add_argument("--pred", metavar="JSON", help="predictions (cityscapes: folder of results)")
    files.add_argument("--gt-folder", metavar="DIR", help="PNGs of the ground truth (default: --gt without .json)")
    files.add_argument("--pred-folder", metavar="DIR", help="PNGs of the predictions (default: --pred without .json)")
    files.add_argument("--photos", metavar="DIR", help="the photos, for the report of --out")
    files.add_argument(
        "--protocol", choices=("coco", "cityscapes"), help="whose files and scores these are (default: coco)"
    )
    files.add_argument("--workers", type=int, metavar="N", help="threads (default: one a processor, at most 8)")

    parser.add_argument("--json", metavar="OUT", help="write the scores here")
    parser.add_argument("--out", metavar="DIR", help="keep maps, scores and outcomes here, for `seamseg report`")
    parser.add_argument(
        "--legacy-metrics",
        action="store_true",
        help="count as the original did: crowds void for all classes, absent classes 0; a model at network size",
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the table, write the JSON."""
    if args.protocol == "cityscapes":
        from seamseg.cli.evaluate_cityscapes import run_cityscapes

        return run_cityscapes(args, _worker_count(args))
    from seamseg.evaluation.scores import format_table
    from seamseg.utils.files import write_json

    if args.out is not None and args.legacy_metrics:
        raise InputError("--out and --legacy-metrics exclude each other: the files hold maps of the official kind")
    if args.out is not None and Path(args.out).exists() and not Path(args.out).is_dir():
        raise InputError(f"{args.out}: --out must be a folder, this is a file")
    scores = _score_files(args) if args.gt is not None or args.pred is not None else _score_model(args)
    if not is_main_process():
        return 0
    # the table first: hours of work must not be lost because the file cannot be written
    print(format_table(scores), flush=True)
    if args.json is not None:
        write_json(args.json, scores.to_json(), indent=2)
    return 0


def _score_files(args: argparse.Namespace) -> PanopticScores:
    if args.model is not None or _given(args, _MODEL_OPTIONS):
        extra = "MODEL" if args.model is not None else _given(args, _MODEL_OPTIONS)
        raise InputError(f"{extra} and --gt / --pred exclude each other: score either a model or files")
    if args.gt is None or args.pred is None:
        raise InputError("--gt and --pred go together: name the ground truth and the predictions")
    from seamseg.evaluation.evaluate_files import evaluate_panoptic_json
    from seamseg.evaluation.record import MapFiles
    from seamseg.utils.progress import progress

    return evaluate_panoptic_json(
        args.gt if args.gt_folder is None else MapFiles(args.gt, args.gt_folder),
        args.pred if args.pred_folder is None else MapFiles(args.pred, args.pred_folder),
        _worker_count(args),
        args.legacy_metrics,
        progress,
        args.out,
        args.photos,
    )


def _worker_count(args: argparse.Namespace) -> int:
    """How many threads read and compare files."""
    workers: int = min(available_cores(), 8) if args.workers is None else args.workers
    if workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    return workers


def _score_model(args: argparse.Namespace) -> PanopticScores:
    if args.model is None or args.data is None:
        raise InputError("say what to score: MODEL DATA, or --gt GT.json --pred PRED.json")
    if extra := _given(args, _FILE_OPTIONS):
        raise InputError(f"{extra} is for scoring files with --gt and --pred, not for MODEL DATA")
    from seamseg.validation.evaluate import evaluate_model

    return evaluate_model(
        args.model,
        args.data,
        split=args.split,
        config=args.config,
        meta=args.meta,
        device=args.device or "auto",
        overrides=[*(args.set or []), *(["general.eval_coco=yes"] if args.ap else [])],
        legacy=args.legacy_metrics,
        quiet=args.quiet,
        out=args.out,
    ).scores


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> str | None:
    """The first option of `names` that was given, as it is written."""
    return next(("--" + n.replace("_", "-") for n in names if getattr(args, n) is not None), None)
