"""Panoptic or semantic segmentation of, or detection in images with a trained model.

    seamseg predict runs/city photos/ out/
    seamseg predict seamseg_r50_vistas.zip street.jpg out/ --format overlay,coco
    seamseg predict model_best.pth.tar 'drive/**/*.png' out/ --config my.ini --meta DATA/metadata.bin
    torchrun --nproc-per-node 4 -m seamseg predict runs/city photos/ out/

MODEL is a published zip, a run folder of `seamseg train`, a folder of `seamseg convert-model`, a snapshot, an exported
network (.onnx, .pt2), a folder of a panoptic network of transformers, torchvision:NAME of a detector, or
hf://user/repo[@revision] on the Hugging Face Hub. IN is an image, a folder (with its sub-folders, which are kept in
OUT), a quoted glob, LIST.txt or @LIST with one path a line, or a video (needs PyAV). The EXIF orientation of an image
is applied, and the output has its size. Images that cannot be read are reported, counted and skipped; the exit code is
then 1. Several INs are allowed (photos/*.jpg without quotes); OUT, a folder, is always the last argument. For tars,
object stores and several machines use `python -m seamseg.integrations.ray`.

OUT/predictions.jsonl has a line for each image. Re-run the same command to resume an interrupted run, with any number
of processes; images that are done are not processed again.

Formats of panoptic models, separated by commas:

  overlay     <name>.jpg, the image blended with the colours of its segments, with --labels also their classes
  coco        panoptic/<name>.png and panoptic.json, the COCO panoptic format
  raw         <name>.pth.tar, the output of the network before the fusion
  cityscapes  cityscapes/{panoptic.json,panoptic/,pixel/,instance/}: a submission to the three benchmarks, for models
              with the classes of Cityscapes
  vistas      vistas/{labels/,instances/,panoptic.json,panoptic/}: the layout of Mapillary Vistas and the instance files
              for its evaluation; labels are the original ids of the classes
  cvat        cvat/{labelmap.txt,ImageSets/,SegmentationClass/,SegmentationObject/}: "Segmentation mask 1.1" of CVAT;
              zip the folder and upload it as annotations, to correct them
  labelstudio labelstudio/{tasks/<name>.json,label_config.xml}: tasks of Label Studio, brush regions as predictions

Formats of models for detection and instance segmentation:

  overlay         <name>.jpg, the image with boxes, masks, class names and scores
  overlay-legacy  <name>.jpg, masks at 75 % opacity, boxes, no text, as the original draws them
  coco-results    coco_results.json, boxes and masks (RLE) of all images as pycocotools reads them: all that the network
                  returns (above [roi] score_threshold), or those above --score-threshold if it is given
  raw             <name>.pth.tar, the output of the network

Formats of models for semantic segmentation:

  overlay        <name>.jpg, the image blended with the colours of its classes
  labels         <name>.png, the index of the class of each pixel, with a palette of the classes' colours
  ids            <name>.png, the same as a greyscale image
  probabilities  <name>_prob.png, 255 times the probability of the class of each pixel

With --anonymize, OUT/<name>.jpg is the image with the given classes (people, vehicles, ...) made unrecognisable, at its
own size and without metadata (place, date, camera, thumbnail); other formats are written if --format names them.

cityscapes and vistas have no sub-folders: images with the same name in two folders are an error.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from seamseg.cli.model_options import add_model_options, check_model, inference_options
from seamseg.utils.output import echo

if TYPE_CHECKING:
    from seamseg.predict.job import RunSummary
    from seamseg.predict.settings import PredictSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="zip, folder, snapshot, torchvision:NAME, hf://user/repo, or a program you trust: .onnx, .pt2",
    )
    parser.add_argument("inputs", metavar="IN", nargs="+", help="image, folder, glob, list or video; one or several")
    parser.add_argument("out", metavar="OUT", help="folder for the outputs (created)")
    parser.add_argument("--format", metavar="LIST", help="see above (default: overlay; with --anonymize none)")
    parser.add_argument(
        "--labels",
        dest="set",
        action="append_const",
        default=[],
        const="format overlay.labels=yes",
        help="write class and score on the segments of overlays, and the colours of the classes to OUT/legend.png",
    )
    add_model_options(parser)
    _add_anonymisation(parser.add_argument_group("anonymisation"))
    _add_run(parser.add_argument_group("run"))


def _add_anonymisation(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--anonymize", metavar="LIST", help="classes to hide, such as person,rider,car")
    group.add_argument("--anonymize-style", choices=("blur", "pixels"), help="default: blur")
    group.add_argument(
        "--anonymize-score",
        type=float,
        metavar="P",
        help="minimum score of hidden detections (default: 0.2, lower than for the panoptic map, to be safe)",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="maximum number of images of equal network size computed together (default: 1)",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that decode, threads for .onnx; with 0 this process decodes, and an image that crashes the "
        "decoder ends it (default: one per core up to 4, or a quarter of the cores; 0 for a single image, or if "
        "most have 33 megapixels or more)",
    )
    group.add_argument(
        "--limit", type=int, metavar="N", help="only the first N images, and the first N frames of each video"
    )
    group.add_argument("--restart", action="store_true", help="process all images again, and replace earlier outputs")


def run(args: argparse.Namespace) -> int:
    """Predict; return 0, or 1 if some images failed."""
    # before the libraries are loaded, which takes seconds
    settings = _settings(args)
    from seamseg.checkpoints.model_path import is_exported
    from seamseg.predict.find import find_sources, limited
    from seamseg.predict.folder import output_path
    from seamseg.predict.job import default_workers, predict_all
    from seamseg.utils.distributed import distributed

    exported = is_exported(settings.path)
    out = output_path(args.out)
    sources = limited(find_sources(args.inputs, out), args.limit)
    with distributed(None if exported else args.device) as world:
        predictor = settings.load(world.device or args.device)
        folder = settings.open_folder(out, predictor, sources)
        workers = default_workers(sources, world) if args.workers is None else args.workers
        summary = predict_all(predictor, sources, folder, world, args.batch_size, workers, args.restart)
        if world.is_main and not args.quiet:
            _print(args.out, summary, predictor.network.averaged)
            # a semantic network has no threshold; with --anonymize, detections below it are hidden, too
            if summary.empty and args.anonymize is None and predictor.kind != "semantic":
                echo(_nothing_found(summary.done, predictor.thresholds.score_threshold), file=sys.stderr)
    return 1 if summary.failed else 0


def _print(out: str, summary: RunSummary, averaged: bool) -> None:
    weights = ", with the moving average of the weights" if averaged else ""
    earlier = f", {summary.earlier} were there already" if summary.earlier else ""
    failed = f", {summary.failed} failed" if summary.failed else ""
    echo(f"{_photos(summary.done)} in {out}{weights}{earlier}{failed}", file=sys.stderr)
    if summary.several_frames:
        files = f"{summary.several_frames} file{'' if summary.several_frames == 1 else 's'}"
        echo(f"{files} with several frames or pages: only the first was used", file=sys.stderr)


def _nothing_found(done: int, score_threshold: float) -> str:
    return f"nothing was found in {done} of {_photos(done)}; --score-threshold is {score_threshold:g}"


def _photos(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _settings(args: argparse.Namespace) -> PredictSettings:
    """Return the settings; raise InputError if an argument is wrong, as far as can be checked without the model."""
    from seamseg.utils.errors import InputError
    from seamseg.utils.parallel import check_workers

    for name in ("limit", "batch_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if args.workers is not None:
        check_workers(args.workers)
    from seamseg.predict.settings import PredictSettings

    settings = PredictSettings(
        args.model,
        args.format,
        args.config,
        args.meta,
        inference_options(args),
        args.anonymize,
        args.anonymize_style,
        args.anonymize_score,
    )
    check_model(args.model, args.config, args.meta, args.set, args.device)
    return settings
