"""Panoptic or semantic segmentation of, or detection in images with a trained model.

    seamseg predict runs/city photos/ out/
    seamseg predict seamseg_r50_vistas.zip street.jpg out/ --format overlay,coco
    seamseg predict runs/city drive.mp4 overlays.mp4
    seamseg predict model_best.pth.tar 'drive/**/*.png' out/ --config my.ini --meta DATA/metadata.bin
    torchrun --nproc-per-node 4 -m seamseg predict runs/city photos/ out/

MODEL is a published zip, a run folder of `seamseg train`, a folder of `seamseg convert-model`, a snapshot, an exported
network (.onnx, .pt2), a folder of a panoptic network of transformers, torchvision:NAME of a detector, or
hf://user/repo[@revision] on the Hugging Face Hub. IN is an image, a folder (with its sub-folders, which are kept in
OUT), a quoted glob, LIST.txt or @LIST with one path per line, or a video (needs PyAV). The EXIF orientation of an image
is applied, and the output has its size. Images that cannot be read are reported, counted and skipped; the exit code is
then 1. Several INs are allowed (photos/*.jpg without quotes); OUT, a folder, is always the last argument; for one video
it may be a file, drive.mp4, which gets the overlays. For tars, object stores and several machines use `python -m
seamseg.contrib.ray`.

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

Formats of all models:

  json        json/<name>.json, class, score, box, area and mask (RLE of COCO) of each segment or object
  csv         counts.csv, the number and area of the segments or objects of each class in each image

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamseg.cli.main import add_options, check_model, options_of
from seamseg.inference.options import LABELS, PredictOptions
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import counted
from seamseg.utils.output import echo

if TYPE_CHECKING:
    from seamseg.inference.predictor import Predictor
    from seamseg.predicting.job import RunSummary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--show", action="store_true", help="print the path of the first output, for a viewer")
    # formats need probabilities, or do not
    add_options(parser, PredictOptions, without=("probabilities",))
    # after --set, whose name stands for the overrides in errors
    parser.add_argument(
        "--labels",
        dest="overrides",
        action="append_const",
        default=[],
        const=LABELS,
        help="write class and score on the segments of overlays, and the colours of the classes to OUT/legend.png",
    )


def run(args: argparse.Namespace) -> int:
    """Predict; return 0, or 1 if some images failed."""
    options = options_of(args, PredictOptions)
    # before the libraries are loaded, which takes seconds
    check_model(args.model, args.device)
    from seamseg.predicting.job import predict_files

    def report(predictor: Predictor[Any], summary: RunSummary) -> None:
        _print(args.out, summary)
        # with --anonymize, detections below the threshold are hidden, too
        has_threshold = "score_threshold" in predictor.result_type.options
        if summary.empty and options.hide is None and has_threshold:
            images, score = counted(summary.done, "image"), predictor.thresholds.score_threshold
            echo(f"nothing was found in {summary.done} of {images}; --score-threshold is {score:g}", file=sys.stderr)
        if options.hide is not None:
            echo("only what the network found is hidden: look at the images before you publish them", file=sys.stderr)

    summary = predict_files(options, *([] if args.quiet else [report]))
    if args.show and is_main_process():
        from seamseg.maps.predictions import MANIFEST
        from seamseg.predicting.folder import read_lines

        out = Path(args.out)  # a video
        written = [] if out.is_file() else (line.get("outputs") for _, line in read_lines(out / MANIFEST))
        echo(next((out / names[0] for names in written if names), out))
    return 1 if summary.failed else 0


def _print(out: str, summary: RunSummary) -> None:
    earlier = f", {summary.earlier} were there already" if summary.earlier else ""
    failed = f", {summary.failed} failed" if summary.failed else ""
    done = counted(summary.done, "frame" if Path(out).is_file() else "image")
    echo(f"{done} in {out}{earlier}{failed}", file=sys.stderr)
    if summary.several_frames:
        files = counted(summary.several_frames, "file")
        echo(f"{files} with several frames or pages: only the first was used", file=sys.stderr)
