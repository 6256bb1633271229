"""Score a model on a data set, or prediction files against ground-truth files.

    seamseg evaluate runs/city DATA --split val --json metrics.json
    seamseg evaluate --gt panoptic_val.json --pred out/panoptic.json --json metrics.json
    seamseg evaluate --protocol cityscapes --gt gtFine/val --pred out/cityscapes --json metrics.json
    seamseg evaluate runs/city DATA --out runs/city/evaluation && seamseg report runs/city
    seamseg evaluate runs/city DATA --precision bf16 --tta flip
    seamseg evaluate vistas.zip cityscapes/ --class-table vistas_cityscapes
    torchrun --nproc-per-node 4 -m seamseg evaluate runs/city DATA

The scores are PQ, SQ and RQ with the official COCO definition, PQ† of the Seamless paper, and mIoU; for all classes,
things, stuff, and each class. There are two mIoUs: of the class map, in which things without a detection have their
class, and of the segments, where they are void as in files. The table is in percent, --json writes fractions 0-1
("mIoU" and "mIoU_segments"). Files are in the COCO panoptic format; by default the PNGs are in the folder named like
the JSON without .json. --protocol cityscapes scores a results folder like the benchmark's own tools: those of
panoptic.json, pixel/*.png and instance/*.txt that it holds; the last two need the extra `cityscapes`.

--out writes an evaluation folder: predictions and ground truth as COCO panoptic files, which the official tools can
score again, the confusion matrix, the scores of each image and the match of each segment. `seamseg report` makes an
HTML page of it.

The scores of a detection or instance segmentation network are COCO's box and mask AP, those of a semantic segmentation
network mIoU and the fraction of correct pixels. A model is run as by `seamseg predict` with the same options, so that
the scores are those of its results. `--set general.kind=detection` scores the boxes of a panoptic network.

--class-table scores a model on a data set with other classes, whose definition of things and stuff counts. Classes of
the data set that the model has none for count as missed: PQ, IoU and AP 0 where they occur.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.inference.options import MODEL
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError
from seamseg.utils.files import nearest_path, write_json
from seamseg.utils.output import echo
from seamseg.validation.options import EvaluationOptions

if TYPE_CHECKING:
    from seamseg.maps.evaluation.cityscapes import CityscapesScores
    from seamseg.maps.evaluation.scores import PanopticScores, Scores

_CITYSCAPES_OPTIONS = ("gt", "pred", "protocol", "workers", "json")
_FILE_OPTIONS = ("gt_folder", "pred_folder", "photos", *_CITYSCAPES_OPTIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    model = parser.add_argument_group("a model on a data set")
    model.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    model.add_argument("data", nargs="?", metavar="DATA", help="data set folder, as `seamseg prepare` writes it")
    model.add_argument("--ap", action="store_const", const=True, help="also compute COCO box and mask AP")
    by_hand = ("model", "data", "quiet", "probabilities")
    add_options(parser, EvaluationOptions, {"opening": model}, by_hand, unused=("classes",))

    files = parser.add_argument_group("files in the COCO panoptic format")
    files.add_argument("--gt", metavar="JSON", help="ground truth (cityscapes: folder of a split, as gtFine/val)")
    files.add_argument("--pred", metavar="JSON", help="predictions (cityscapes: folder of results)")
    files.add_argument("--gt-folder", metavar="DIR", help="PNGs of the ground truth (default: --gt without .json)")
    files.add_argument("--pred-folder", metavar="DIR", help="PNGs of the predictions (default: --pred without .json)")
    files.add_argument("--photos", metavar="DIR", help="the images, for the report of --out")
    files.add_argument(
        "--protocol", choices=("coco", "cityscapes"), help="file format and definition of the scores (default: coco)"
    )
    files.add_argument("--workers", type=int, metavar="N", help="threads (default: one per processor, up to 8)")

    parser.add_argument("--json", metavar="OUT", help="write the scores to this file")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the table, write the JSON."""
    if args.out is not None and args.legacy:
        raise InputError("--out and --legacy-metrics are mutually exclusive: the folder holds the official metrics")
    if args.out is not None and Path(args.out).exists() and not Path(args.out).is_dir():
        raise InputError(f"{args.out}: --out must be a folder, this is a file")
    of_files = args.gt is not None or args.pred is not None or args.protocol == "cityscapes"
    scores = _score_files(args) if of_files else _score_model(args)
    if is_main_process():
        try:
            # first: the scores must not be lost if the file cannot be written
            echo(scores.table(), flush=True)
        finally:
            if args.json is not None:
                write_json(args.json, scores.to_json(), indent=2)
    return 0


def _score_files(args: argparse.Namespace) -> PanopticScores | CityscapesScores:
    from seamseg.utils.parallel import available_cores, check_workers  # not for --help
    from seamseg.utils.progress import progress

    workers = min(available_cores(), 8) if args.workers is None else check_workers(args.workers, least=1)
    cityscapes = args.protocol == "cityscapes"
    allowed = _CITYSCAPES_OPTIONS if cityscapes else (*_FILE_OPTIONS, "legacy", "out")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [name for name, value in vars(parser.parse_args([])).items() if getattr(args, name) != value]
    if other := next((name for name in given if name not in allowed), None):
        extra = other.upper() if other in ("model", "data") else f"`{other}`"
        if cityscapes:
            takes = "which takes --gt, --pred, --workers, --json"
            raise InputError(f"{extra} cannot be used with --protocol cityscapes, {takes}")
        raise InputError(f"{extra} and --gt / --pred are mutually exclusive: score either a model or files")
    if args.gt is None or args.pred is None:
        what = "gtFine/val and a folder of results" if cityscapes else "the ground truth and the predictions"
        raise InputError(f"--gt and --pred must be given together: {what}")
    if cityscapes:
        from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes

        return evaluate_cityscapes(args.gt, args.pred, workers, progress)
    if args.photos is not None and not Path(args.photos).is_dir():
        raise InputError(f"--photos {args.photos}: no such folder{nearest_path(args.photos)}")
    from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
    from seamseg.maps.evaluation.record import MapFiles

    return evaluate_panoptic_json(
        args.gt if args.gt_folder is None else MapFiles(args.gt, args.gt_folder),
        args.pred if args.pred_folder is None else MapFiles(args.pred, args.pred_folder),
        workers,
        args.legacy,
        progress,
        args.out,
        args.photos,
    )


def _score_model(args: argparse.Namespace) -> Scores:
    if args.model is None or args.data is None:
        raise InputError("nothing to score: give MODEL DATA, or --gt GT.json --pred PRED.json")
    if extra := next((name for name in _FILE_OPTIONS if name != "json" and getattr(args, name) is not None), None):
        raise InputError(f"`{extra}` is for scoring files with --gt and --pred, not for MODEL DATA")
    if not Path(args.data).exists():
        from seamseg.maps.folder import find_metadata

        find_metadata(args.data)
    check_model(args.model, args.device)
    options = options_of(args, EvaluationOptions)
    if args.ap:
        options = replace(options, overrides=(*args.overrides, "general.eval_coco=yes"))
    from seamseg.validation.evaluate import evaluate_model

    return evaluate_model(options)
