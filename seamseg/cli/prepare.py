"""Convert a data set to the dataset folder of `seamseg train` and `seamseg evaluate`; check, merge or export one.

seamseg prepare cityscapes ROOT OUT           raw Cityscapes, unpacked or as zip files
seamseg prepare vistas ROOT OUT               Mapillary Vistas 1.x and 2.0
seamseg prepare coco ROOT OUT                 COCO panoptic
seamseg prepare panoptic OUT --split ...      custom data: COCO panoptic JSON and PNG
seamseg prepare folders OUT --split ...       custom data: images, and PNG masks or polygons (labelme, YOLO)
seamseg prepare instances OUT --split ...     custom data: COCO instances, and label images for the stuff
seamseg prepare cvat OUT --split ...          images annotated with CVAT (Segmentation mask 1.1)
seamseg prepare labelstudio OUT --split ...   images annotated with Label Studio (brush, polygons)
seamseg prepare merge DATA DATA OUT           merge dataset folders
seamseg prepare export DATA OUT               export a dataset folder to COCO panoptic, Cityscapes or Vistas
seamseg prepare --check DATA                  check a dataset folder
seamseg prepare toy-city RAW                  generate street scenes in the layout of raw Cityscapes
seamseg prepare toy-things OUT                generate images of their things, in a folder for each class

Each has --help with examples. To try it without a download:

  seamseg prepare toy-city toy_raw --train 200 --val 40
  seamseg prepare cityscapes toy_raw toy
  seamseg prepare --check toy
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.cli import prepare_texts as texts
from seamseg.cli.main import add_action
from seamseg.cli.prepare_check import add_check_arguments, run_check
from seamseg.utils.errors import InputError
from seamseg.utils.output import echo
from seamseg.utils.parallel import check_workers
from seamseg.utils.progress import counter, is_quiet, progress

if TYPE_CHECKING:
    from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a sub-command for each source, and --check."""
    parser.add_argument(
        "--check", metavar="DATA", help="check a dataset folder; the same as `seamseg prepare check DATA`"
    )
    add_check_arguments(parser)
    sources = parser.add_subparsers(dest="source", metavar="SOURCE")
    _add_public(sources)
    _add_custom(sources)
    _add_folder_tools(sources)
    _add_toy_city(sources)


def _add_public(sources: argparse._SubParsersAction) -> None:
    cityscapes = _converter(sources, "cityscapes", texts.CITYSCAPES, _cityscapes)
    cityscapes.add_argument(
        "root", metavar="ROOT", help="folder with leftImg8bit/ and gtFine/ or gtCoarse/, or zip files"
    )
    _add_out(cityscapes)
    _add_splits(cityscapes, "train,val,train_extra")

    vistas = _converter(sources, "vistas", texts.VISTAS, _vistas)
    vistas.add_argument("root", metavar="ROOT", help="folder with config.json, training/ and validation/, or zip file")
    _add_out(vistas)
    vistas.add_argument("--version", choices=["1.2", "2.0"], help="version of the labels (default: the one in ROOT)")
    _add_splits(vistas, "training,validation")

    coco = _converter(sources, "coco", texts.COCO, _coco)
    coco.add_argument("root", metavar="ROOT", help="folder with train2017/, val2017/, annotations/, or zip files")
    _add_out(coco)
    _add_splits(coco, "train2017,val2017")


def _add_custom(sources: argparse._SubParsersAction) -> None:
    panoptic = _converter(sources, "panoptic", texts.PANOPTIC, _panoptic)
    _add_out(panoptic)
    _add_split_files(panoptic, ("NAME", "PHOTOS", "JSON", "MASKS"), 4)
    _add_void_background(panoptic)

    folders = _converter(sources, "folders", texts.FOLDERS, _folders)
    _add_out(folders)
    _add_split_files(folders, ("NAME", "PHOTOS LABELS [INSTANCES]"), "+")
    folders.add_argument("--classes", metavar="FILE", required=True, help="class list, INI or JSON")
    folders.add_argument("--divisor", type=int, default=0, metavar="N", help="labels hold class * N + instance")
    folders.add_argument(
        "--suffixes",
        nargs=3,
        default=("", "", ""),
        metavar=("PHOTO", "LABEL", "INSTANCE"),
        help="suffixes of the file names before their extensions",
    )
    _add_void_background(folders)

    instances = _converter(sources, "instances", texts.INSTANCES, _instances)
    _add_out(instances)
    _add_split_files(instances, ("NAME", "PHOTOS JSON [LABELS]"), "+")
    instances.add_argument("--classes", metavar="FILE", help="class list, INI or JSON; required with label images")
    instances.add_argument(
        "--no-crowds", action="store_true", help="read crowds as single objects, as CVAT marks all masks of its brush"
    )
    _add_void_background(instances)

    for name, text, words, convert in (
        ("cvat", texts.CVAT, ("NAME", "PHOTOS", "EXPORT"), _cvat),
        ("labelstudio", texts.LABEL_STUDIO, ("NAME", "PHOTOS", "TASKS"), _label_studio),
    ):
        tool = _converter(sources, name, text, convert)
        _add_out(tool)
        _add_split_files(tool, words, 3)
        tool.add_argument(
            "--classes", metavar="FILE", help=f"class list, INI or JSON (default: classes.json in {words[2]})"
        )
        _add_void_background(tool)


def _add_void_background(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--void-background",
        action="store_true",
        help="leave pixels without a label void where the classes are things only, which otherwise get a stuff class "
        "background; losses and scores ignore void",
    )


def _add_folder_tools(sources: argparse._SubParsersAction) -> None:
    merge = _converter(sources, "merge", texts.MERGE, _merge)
    merge.add_argument("parts", metavar="DATA", nargs="+", help="two or more dataset folders")
    _add_out(merge)
    merge.add_argument("--classes", metavar="FILE", help="JSON mapping of class names (default: by name)")

    export = _converter(sources, "export", texts.EXPORT, _export)
    export.add_argument("data", metavar="DATA", help="dataset folder")
    export.add_argument("out", metavar="OUT", help="output folder; each format gets a folder in it")
    export.add_argument("--split", metavar="A,B", help="lists of images, separated by commas (default: all)")
    export.add_argument(
        "--format",
        default="coco",
        metavar="LIST",
        help="any of coco,cityscapes,vistas, separated by commas (default: coco)",
    )
    export.add_argument("--force", action="store_true", help="overwrite an existing split in OUT")

    check = _source(sources, "check", texts.CHECK, run_check)
    check.add_argument("check", metavar="DATA", help="dataset folder")
    add_check_arguments(check)


def _add_toy_city(sources: argparse._SubParsersAction) -> None:
    toy = _source(sources, "toy-city", texts.TOY_CITY, _toy_city)
    toy.add_argument("root", metavar="RAW", help="output folder")
    toy.add_argument("--train", type=int, default=400, metavar="N", help="training scenes (default: %(default)s)")
    toy.add_argument("--val", type=int, default=40, metavar="N", help="validation scenes (default: %(default)s)")
    toy.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    toy.add_argument(
        "--size",
        type=_size,
        default=(256, 512),
        metavar="HxW",
        help="height and width of landscape scenes (default: 256x512)",
    )
    _add_workers(toy)

    things = _source(sources, "toy-things", texts.TOY_THINGS, _toy_things)
    things.add_argument("out", metavar="OUT", help="output folder, for `seamseg classify train`")
    things.add_argument("--train", type=int, default=600, metavar="N", help="training scenes (default: %(default)s)")
    things.add_argument("--val", type=int, default=100, metavar="N", help="validation scenes (default: %(default)s)")
    things.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    _add_workers(things)


def run(args: argparse.Namespace) -> int:
    """Convert, check or generate."""
    workers = getattr(args, "workers", None)
    if workers is not None:
        check_workers(workers, least=1)
    if args.source is None:
        if args.check is None:
            raise InputError("nothing to do: name a SOURCE or --check DATA; see seamseg prepare --help")
        return run_check(args)
    if args.check is not None and args.source != "check":
        raise InputError(f"--check DATA cannot be combined with the source {args.source}; run them one after the other")
    return args.convert(args)


def _source(
    sources: argparse._SubParsersAction, name: str, text: str, convert: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = add_action(sources, name, text)
    parser.set_defaults(convert=convert)
    return parser


def _converter(
    sources: argparse._SubParsersAction, name: str, text: str, convert: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = _source(sources, name, text, convert)
    parser.add_argument("--copy", action="store_true", help="copy images instead of hard-linking them")
    parser.add_argument(
        "--symlink", action="store_true", help="make symbolic links to the images instead of hard links"
    )
    _add_workers(parser)
    return parser


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="number of parallel workers (default: one per processor)",
    )


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="dataset folder to write; other splits in it are kept")


def _add_splits(parser: argparse.ArgumentParser, splits: str) -> None:
    parser.add_argument(
        "--splits",
        default=splits,
        metavar="A,B",
        help=f"any of {splits}, separated by commas (default: all that ROOT has)",
    )


def _add_split_files(parser: argparse.ArgumentParser, words: tuple[str, ...], nargs: int | str) -> None:
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        nargs=nargs,
        metavar=words,
        help="name of a list of images, and its files; may be repeated",
    )
    parser.add_argument(
        "--hold-out",
        type=float,
        default=0.0,
        metavar="P",
        help="fraction of the images, always the same ones, for a list val instead (default: %(default)g)",
    )


def _cityscapes(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.cityscapes import prepare_cityscapes

    return _report(args, prepare_cityscapes(args.root, args.out, _words(args.splits), _options(args)))


def _vistas(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.vistas import prepare_vistas

    return _report(args, prepare_vistas(args.root, args.out, args.version, _words(args.splits), _options(args)))


def _coco(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.panoptic import prepare_coco

    return _report(args, prepare_coco(args.root, args.out, _words(args.splits), _options(args)))


def _panoptic(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.panoptic import prepare_panoptic

    splits = {name: (rest[0], rest[1], rest[2]) for name, rest in _split_files(args, "PHOTOS JSON MASKS", (3,)).items()}
    return _report(args, prepare_panoptic(args.out, splits, _options(args)))


def _folders(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.label_folders import prepare_folders

    splits = _split_files(args, "PHOTOS LABELS [INSTANCES]", (2, 3))
    photo, label, instance = args.suffixes
    result = prepare_folders(args.out, splits, args.classes, args.divisor, (photo, label, instance), _options(args))
    return _report(args, result)


def _instances(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.coco_instances import prepare_instances

    splits = _split_files(args, "PHOTOS JSON [LABELS]", (2, 3))
    return _report(args, prepare_instances(args.out, splits, args.classes, _options(args)))


def _cvat(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.annotation_tools import prepare_cvat

    splits = _split_files(args, "PHOTOS EXPORT", (2,))
    return _report(args, prepare_cvat(args.out, splits, args.classes, _options(args)))


def _label_studio(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.annotation_tools import prepare_label_studio

    splits = _split_files(args, "PHOTOS TASKS", (2,))
    return _report(args, prepare_label_studio(args.out, splits, args.classes, _options(args)))


def _merge(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.merge import MergeRules, merge_datasets, read_rules

    if len(args.parts) < 2:
        raise InputError("merge: expected two or more dataset folders and OUT")
    rules = MergeRules() if args.classes is None else read_rules(args.classes)
    return _report(args, merge_datasets(args.parts, args.out, rules, _options(args)))


def _export(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.export import export_dataset

    formats = _words(args.format)
    counts = export_dataset(args.data, args.out, _words(args.split or ""), formats, _options(args), args.force)
    images = ", ".join(f"{count} {'image' if count == 1 else 'images'} of {name}" for name, count in counts.items())
    echo(f"{args.out}: {images} in {', '.join(dict.fromkeys(formats))}")
    return 0


def _toy_city(args: argparse.Namespace) -> int:
    from seamseg.maps.toy_city import generate_toy_city

    shown = counter("toy city")
    workers = getattr(args, "workers", None)
    scenes = generate_toy_city(args.root, args.train, args.val, args.seed, args.size, workers, shown)
    echo(f"{args.root}: {len(scenes)} scenes; next: seamseg prepare cityscapes {args.root} OUT")
    return 0


def _toy_things(args: argparse.Namespace) -> int:
    from seamseg.maps.toy_city import generate_toy_things

    shown = counter("toy things")
    workers = getattr(args, "workers", None)
    counts = generate_toy_things(args.out, args.train, args.val, args.seed, workers, shown)
    for split, classes in counts.items():
        echo(f"{args.out}/{split}: {', '.join(f'{count} {name}' for name, count in classes.items())}")
    return 0


def _options(args: argparse.Namespace) -> ConversionOptions:
    from seamseg.maps.prepare.convert import ConversionOptions

    names = ("workers", "copy", "symlink", "hold_out", "no_crowds", "void_background")
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return ConversionOptions(progress=progress, log=_print_message, **given)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _split_files(args: argparse.Namespace, words: str, counts: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    splits: dict[str, tuple[str, ...]] = {}
    for name, *rest in args.split:
        if len(rest) not in counts:
            raise InputError(f"--split {' '.join([name, *rest])}: expected --split NAME {words}")
        if name in splits or not name or "/" in name:
            raise InputError(f"--split {name}: " + ("given twice" if name in splits else "not a valid list name"))
        splits[name] = tuple(rest)
    return splits


def _report(args: argparse.Namespace, result: ConversionResult) -> int:
    from seamseg.maps.folder import void_warning
    from seamseg.maps.prepare.check import crowd_warnings

    counts = ", ".join(
        f"{count} {'image' if count == 1 else 'images'} in {name}" for name, count in result.splits.items()
    )
    classes = result.metadata
    echo(f"{args.out}: {counts}; {classes.num_stuff} stuff and {classes.num_thing} thing classes")
    for split, account in result.accounts.items():
        echo(*account.lines(split), sep="\n")
        if (problem := void_warning(account.void)) is not None:
            _print_message(f"{split}: {problem}")
        if classes.num_thing and not account.objects:
            _print_message(f"{split}: no object of {', '.join(classes.categories[classes.num_stuff :])}")
    for text in crowd_warnings(classes, classes.images) if hasattr(args, "no_crowds") else []:
        _print_message(f"{text}; --no-crowds reads them as single objects")
    own_data = hasattr(args, "hold_out") and classes.num_thing > 0 and "train" in result.splits
    if own_data and not Path(args.out, "lst", "val.txt").is_file():
        echo(
            "next: prepare a split val for the scores, or repeat the command with --hold-out 0.2; then train small_r18"
        )
    elif own_data:
        echo("next: seamseg convert-backbone resnet18 resnet18.pth")
        words = f"{shlex.quote(str(args.out))} --log-dir runs/my --pre-train body:resnet18.pth"
        echo(f"      seamseg train small_r18 {words}")
    return 0


def _print_message(message: str) -> None:
    if not is_quiet():
        echo(f"seamseg prepare: {message}", file=sys.stderr)


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, for example 256x512")
    return int(height), int(width)
