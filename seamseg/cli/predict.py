"""Panoptic segmentation of photos with a trained model.

    seamseg predict runs/city photos/ out/
    seamseg predict seamseg_r50_vistas.zip street.jpg out/ --format overlay,coco
    seamseg predict model_best.pth.tar 'drive/**/*.png' out/ --config my.ini --meta DATA/metadata.bin
    torchrun --nproc-per-node 4 -m seamseg predict runs/city photos/ out/
    seamseg predict runs/city s3://bucket/photos s3://bucket/out
    seamseg predict runs/city photos/ out/part-%06d.tar --format coco,overlay

MODEL is a published zip, a run folder of `seamseg train`, or a snapshot. IN is a photo, a folder (searched with its
sub-folders, which are kept in OUT), a quoted glob, LIST.txt or @LIST with a path a line, a video (needs PyAV), tar
shards as of WebDataset ('part-{000..010}.tar'), or the URL of any of these (needs fsspec). Photos of any size and kind
are seen upright, at their own size in the output. Unreadable ones are named, counted and skipped; the exit code is then
1. There may be several INs (photos/*.jpg without quotes); OUT is always the last.

OUT is a folder, a URL (needs fsspec; https cannot be written to), or tar shards as of WebDataset at either, with a
number in their name: part-%06d.tar or 'part-{000000..000999}.tar'. A photo's files lie side by side in a shard:
<key>.overlay.jpg, <key>.panoptic.png, <key>.raw.pth, <key>.jpg (--anonymize) and <key>.json; panoptic.json and
predictions.jsonl lie beside the shards.

OUT/predictions.jsonl has a line for each photo. By it the same command, run again after it was stopped or killed, with
any number of processes, goes on where it was and does nothing twice.

Formats, with commas between:

  overlay     <name>.jpg, the photo blended with the colours of its segments
  coco        panoptic/<name>.png and panoptic.json, as the COCO panoptic tools read them
  raw         <name>.pth.tar, what the network says before the fusion
  cityscapes  cityscapes/{panoptic.json,panoptic/,pixel/,instance/}: a submission to the three benchmarks; for models
              with classes of Cityscapes
  vistas      vistas/{labels/,instances/,panoptic.json,panoptic/}: the layout of Mapillary Vistas and the instance files
              that its evaluation reads; labels are the original ids of the classes

With --anonymize, OUT/<name>.jpg is the photo without recognisable people, vehicles or whatever is named, at its size
and without any metadata (place, date, camera, thumbnail); other formats are written where --format asks for them.

cityscapes and vistas have no sub-folders: photos of one name in two folders are an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("model", metavar="MODEL", help="zip, run folder or snapshot")
    parser.add_argument(
        "inputs", metavar="IN", nargs="+", help="photo, folder, glob, list, video, shards or URL; or several"
    )
    parser.add_argument("out", metavar="OUT", help="folder (is made) or URL for the outputs, or PART-%%06d.tar")
    parser.add_argument(
        "--format",
        metavar="LIST",
        help="overlay,coco,raw,cityscapes,vistas (default: overlay; with --anonymize none)",
    )
    parser.add_argument("--config", metavar="F", help="INI file, if the model does not hold one")
    parser.add_argument("--meta", metavar="F", help="metadata.bin, if the model does not hold one")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--precision",
        default="fp32",
        metavar="P",
        help="fp32, bf16, fp16 (GPU only), or auto: bf16 where the device has it (default: fp32)",
    )
    fusion = parser.add_argument_group("from detections and classes to one map (defaults: the model's configuration)")
    fusion.add_argument("--score-threshold", type=float, metavar="P", help="least score of a detection")
    fusion.add_argument(
        "--overlap-threshold",
        "--iou-threshold",
        type=float,
        metavar="P",
        help="a detection hidden by more than this part of it is left out",
    )
    fusion.add_argument("--min-area", type=int, metavar="N", help="stuff of fewer pixels, at network size, is void")
    size = parser.add_argument_group("size of the network's input")
    size.add_argument("--shortest-size", type=int, metavar="N", help="shortest side (default: as configured)")
    size.add_argument(
        "--longest-max-size",
        type=int,
        metavar="N",
        help="longest side at most; panoramas are shrunk to it "
        "(default: 4 times the shortest size, or the configured longest_max_size if that is more)",
    )
    size.add_argument(
        "--tiles",
        default="auto",
        metavar="auto|off|N",
        help="see huge photos in overlapping tiles, which bounds the memory: auto beyond 16 Mi pixels of input, in "
        "tiles of side 2048; N in tiles of side N wherever there are more pixels; off never (default: auto)",
    )
    size.add_argument("--tile-overlap", type=int, metavar="N", help="of the tiles, in pixels (default: a quarter)")
    size.add_argument("--preview", action="store_true", help="half the size: a quarter of the time, small things lost")
    looks = parser.add_argument_group("what is looked for, and how often")
    looks.add_argument(
        "--tta",
        metavar="LIST",
        help="several looks at each photo, such as flip,0.75,1.0,1.25: mirrored, and at these times its network size; "
        "time grows by the sum of the squares, twice that with flip",
    )
    looks.add_argument("--classes", metavar="LIST", help="only these classes, such as person,car; others are void")
    private = parser.add_argument_group("photos to show around")
    private.add_argument("--anonymize", metavar="LIST", help="classes to hide, such as person,rider,car")
    private.add_argument("--anonymize-style", choices=("blur", "pixels"), help="default: blur")
    private.add_argument(
        "--anonymize-score",
        type=float,
        metavar="P",
        help="least score of detections that are hidden (default: 0.2, to be on the safe side)",
    )
    work = parser.add_argument_group("work")
    work.add_argument("--batch-size", type=int, default=1, metavar="N", help="photos of one size together (default: 1)")
    work.add_argument("--workers", type=int, metavar="N", help="processes that decode (default: up to 4); 0 for none")
    fast = parser.add_argument_group("many photos of few sizes: what takes a while at the start and is faster then")
    fast.add_argument(
        "--compile",
        action="store_true",
        help="make code for a GPU by torch.compile: minutes at the start, for all sizes; works on a CPU with a C++ "
        "compiler, too, but is slower there than leaving it out",
    )
    fast.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="GPU only: record the network's kernels for each size of input that comes twice (the last 8 sizes), and "
        "start them all at once; goes with --compile",
    )
    fast.add_argument(
        "--pad-to",
        type=int,
        default=1,
        metavar="N",
        help="pad the network's input to multiples of N, such as 128: fewer sizes, results differ a little near the "
        "right and lower edge (default: 1, no padding)",
    )
    work.add_argument("--limit", type=int, metavar="N", help="only the first N photos (of each video or shard)")
    work.add_argument(
        "--shard-photos", type=int, default=1000, metavar="N", help="photos of a shard at most (default: 1000)"
    )
    work.add_argument("--restart", action="store_true", help="do all anew, whatever OUT/predictions.jsonl says")
    work.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any configuration key")


def run(args: argparse.Namespace) -> int:
    """Predict; 0, or 1 if some photos could not be read."""
    # before the libraries are loaded, which takes seconds
    formats = _check(args)
    from seamseg.checkpoints.bundle import digest
    from seamseg.inference.anonymize import LEAST_SCORE
    from seamseg.inference.predictor import load_predictor
    from seamseg.predict.job import predict_all
    from seamseg.predict.manifest import header
    from seamseg.predict.sinks import open_outputs, parse_place
    from seamseg.predict.sources.base import Source
    from seamseg.predict.sources.find import find_sources
    from seamseg.predict.writers import Writer, make_writers
    from seamseg.predict.writers.anonymize import AnonymizeWriter
    from seamseg.utils.distributed import distributed
    from seamseg.utils.errors import InputError
    from seamseg.utils.parallel import available_cores

    place = parse_place(args.out)
    if place.path is not None and place.path.exists() and not place.path.is_dir():
        raise InputError(f"{place.folder}: the output must be a folder, this is a file; it is named last")
    sources = find_sources(args.inputs, place.path, place.holds)[: args.limit]
    with distributed(args.device) as world:
        predictor = load_predictor(
            args.model,
            world.device,
            args.config,
            args.meta,
            score_threshold=args.score_threshold,
            overlap_threshold=args.overlap_threshold,
            min_stuff_area=args.min_area,
            shortest_size=args.shortest_size,
            longest_max_size=args.longest_max_size,
            tiles=int(args.tiles) if args.tiles.isdecimal() else args.tiles,
            tile_overlap=args.tile_overlap,
            tta=args.tta,
            classes=args.classes,
            preview=args.preview,
            overrides=args.set,
            precision=args.precision,
            compile=args.compile,
            cuda_graphs=args.cuda_graphs,
            pad_to=args.pad_to,
        )

        def writers(folder: Path) -> list[Writer]:
            made = make_writers(formats, folder, predictor.metadata) if formats else []
            if args.anonymize is not None:
                style: Any = args.anonymize_style or "blur"
                score = LEAST_SCORE if args.anonymize_score is None else args.anonymize_score
                private = AnonymizeWriter(folder, predictor.metadata, args.anonymize, style, score)
                if args.classes is not None:
                    # what the map would show without --classes is hidden all the same
                    private.least_score = min(score, predictor.thresholds.score_threshold)
                made.append(private)
            return made

        # by what it means here: `auto` is another one elsewhere
        settings = {**_settings(args, formats), "precision": str(predictor.net.dtype).removeprefix("torch.")}
        if place.shards is not None:
            settings["shards"] = place.shards.text
        head = header(str(args.model), digest(args.model), settings)
        outputs = open_outputs(place, writers, head, args.shard_photos)
        workers = min(4, available_cores()) if args.workers is None else args.workers
        if args.workers is None and len(sources) < 2 * world.size and all(isinstance(s, Source) for s in sources):
            workers = 0
        tally = predict_all(predictor, sources, outputs, world, args.batch_size, workers, args.restart, args.limit)
        if world.is_main and not args.quiet:
            skipped = f", {tally.unreadable} could not be read" if tally.unreadable else ""
            weights = ", with the moving average of the weights" if predictor.averaged else ""
            earlier = f", {tally.earlier} were there already" if tally.earlier else ""
            print(f"{tally.done} photos in {args.out}{weights}{earlier}{skipped}", file=sys.stderr)
    return 1 if tally.unreadable else 0


def _check(args: argparse.Namespace) -> list[str]:
    """The formats; InputError if an argument is wrong, as far as that can be told at once."""
    from seamseg.checkpoints.missing_model import require_model
    from seamseg.utils.errors import InputError

    require_model(Path(args.model))
    for name in ("limit", "workers", "batch_size", "shard_photos"):
        value, least = getattr(args, name), 0 if name == "workers" else 1
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    return _formats(args)


def _formats(args: argparse.Namespace) -> list[str]:
    """What --format says; InputError if other options do not go with it."""
    from seamseg.utils.errors import InputError

    if args.anonymize is None:
        for name in ("anonymize_style", "anonymize_score"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} says how to hide: name what to hide by --anonymize")
    if args.format is None:
        return ["overlay"] if args.anonymize is None else []
    formats = [f.strip() for f in args.format.split(",") if f.strip()]
    if args.anonymize is not None and "overlay" in formats:
        raise InputError(
            "--format overlay shows what --anonymize hides, under the same name: predict on the anonymised photos "
            "afterwards, into another folder"
        )
    whole = [f for f in formats if f in ("raw", "cityscapes", "vistas")]
    if args.classes is not None and whole:
        raise InputError(f"--format {whole[0]} holds all classes: leave --classes out, or write overlay,coco")
    return formats or [args.format]


_WITHOUT_EFFECT = {
    *("command", "model", "inputs", "out", "device", "batch_size", "workers", "limit", "restart", "quiet", "debug"),
    "shard_photos",
    # these but for rounding
    *("compile", "cuda_graphs"),
}
"""Arguments that do not change the outputs of a photo"""


def _settings(args: argparse.Namespace, formats: list[str]) -> dict[str, Any]:
    """All options that change the outputs, also those of which this module knows nothing."""
    from seamseg.checkpoints.bundle import CONFIG_NAME, METADATA_NAME, digest

    settings = {name: value for name, value in vars(args).items() if name not in _WITHOUT_EFFECT}
    for name, own in (("config", CONFIG_NAME), ("meta", METADATA_NAME)):
        # by its content: a file, also one of the run folder, may change between two runs
        file = Path(args.model if settings[name] is None else settings[name])
        file = file / own if file.is_dir() else file
        if file.is_file() and (settings[name] is not None or Path(args.model).is_dir()):
            settings[name] = f"{file.name} {digest(file)[:12]}"
    return {**settings, "format": ",".join(dict.fromkeys(formats))}
