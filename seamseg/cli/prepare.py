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
from seamseg.cli.main import add_action, size
from seamseg.utils.errors import InputError, SeamsegError, counted, first_names, one_line
from seamseg.utils.files import write_json
from seamseg.utils.output import console, echo
from seamseg.utils.parallel import check_workers
from seamseg.utils.progress import counter, progress

if TYPE_CHECKING:
    from seamseg.maps.prepare.check import Report
    from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult

_MAX_PRINTED = 50
"""Problems of a check that are printed one by one."""

_PUBLIC = {
    "cityscapes": (
        texts.CITYSCAPES,
        "folder with leftImg8bit/ and gtFine/ or gtCoarse/, or zip files",
        "train,val,train_extra",
    ),
    "vistas": (
        texts.VISTAS,
        "folder with config.json, training/ and validation/, or zip file",
        "training,validation",
    ),
    "coco": (texts.COCO, "folder with train2017/, val2017/, annotations/, or zip files", "train2017,val2017"),
}
"""Text, help of ROOT, and splits of the public data sets."""

_CUSTOM = {
    "panoptic": (texts.PANOPTIC, "PHOTOS JSON MASKS", None),
    "folders": (
        texts.FOLDERS,
        "PHOTOS LABELS [INSTANCES]",
        "class list: INI, JSON, .txt or YOLO's data.yaml (default: the labels of labelme)",
    ),
    "instances": (
        texts.INSTANCES,
        "PHOTOS JSON [LABELS]",
        "class list, INI or JSON; required with label images",
    ),
    "cvat": (texts.CVAT, "PHOTOS EXPORT", "class list, INI or JSON (default: classes.json in EXPORT)"),
    "labelstudio": (
        texts.LABEL_STUDIO,
        "PHOTOS TASKS",
        "class list, INI or JSON (default: classes.json in TASKS)",
    ),
}
"""Text, files of a split, and help of --classes of the forms of own data."""

_FLAGS = {
    "copy": "copy images instead of hard-linking them",
    "symlink": "make symbolic links to the images instead of hard links",
    "no_crowds": "read crowds as single objects, as CVAT marks all masks of its brush",
    "void_background": "leave pixels without a label void where the classes are things only, which otherwise get a "
    "stuff class background; losses and scores ignore void",
}
"""Help of the flags of :class:`seamseg.maps.prepare.convert.ConversionOptions`, by its fields."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a sub-command for each source, and --check."""
    parser.add_argument("--check", metavar="DATA", help="check a dataset folder, and print its statistics")
    group = parser.add_argument_group("options of a check")
    group.add_argument("--json", metavar="FILE", help="write the full report to FILE")
    group.add_argument("--sheet", metavar="FILE", help="contact sheet of samples (default: DATA/check.jpg)")
    group.add_argument(
        "--samples",
        type=int,
        metavar="N",
        default=24,
        help="images in the sheet; 0 for no sheet (default: %(default)s)",
    )
    _add_workers(group, "processes")
    sources = parser.add_subparsers(dest="source", metavar="SOURCE")
    for name, (text, root, splits) in _PUBLIC.items():
        public = _source(sources, name, text, _convert, "copy", "symlink")
        public.add_argument("root", metavar="ROOT", help=root)
        _add_out(public)
        if name == "vistas":
            public.add_argument(
                "--version", choices=["1.2", "2.0"], help="version of the labels (default: the one in ROOT)"
            )
        words = f"any of {splits}, separated by commas (default: all that ROOT has)"
        public.add_argument("--splits", default=splits, metavar="A,B", help=words)
    for name, (text, files, classes) in _CUSTOM.items():
        _add_custom(_source(sources, name, text, _convert, "copy", "symlink"), name, files, classes)
    _add_folder_tools(sources)


def _add_custom(parser: argparse.ArgumentParser, name: str, files: str, classes: str | None) -> None:
    _add_out(parser)
    words = [files] if "[" in files else files.split()
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        nargs="+" if "[" in files else len(words) + 1,
        metavar=("NAME", *words),
        help="name of a list of images, and its files; may be repeated",
    )
    parser.add_argument(
        "--hold-out",
        type=float,
        default=0.0,
        metavar="P",
        help="fraction of the images, always the same ones, for a list val instead (default: %(default)g)",
    )
    if classes is not None:
        parser.add_argument("--classes", metavar="FILE", help=classes)
    if name == "folders":
        parser.add_argument("--divisor", type=int, default=0, metavar="N", help="labels hold class * N + instance")
        parser.add_argument(
            "--suffixes",
            nargs=3,
            default=("", "", ""),
            metavar=("PHOTO", "LABEL", "INSTANCE"),
            help="suffixes of the file names before their extensions",
        )
    _add_flags(parser, *(["no_crowds"] if name == "instances" else []), "void_background")


def _add_folder_tools(sources: argparse._SubParsersAction) -> None:
    merge = _source(sources, "merge", texts.MERGE, _convert, "copy", "symlink")
    merge.add_argument("parts", metavar="DATA", nargs="+", help="two or more dataset folders")
    _add_out(merge)
    merge.add_argument("--classes", metavar="FILE", help="JSON mapping of class names (default: by name)")

    export = _source(sources, "export", texts.EXPORT, _export, "copy", "symlink")
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

    toy = _source(sources, "toy-city", texts.TOY_CITY, _toy_city)
    toy.add_argument("root", metavar="RAW", help="output folder")
    toy.add_argument(
        "--size",
        type=size,
        default=(256, 512),
        metavar="HxW",
        help="height and width of landscape scenes (default: 256x512)",
    )
    things = _source(sources, "toy-things", texts.TOY_THINGS, _toy_things)
    things.add_argument("out", metavar="OUT", help="output folder, for `seamseg classify train`")
    for parser, train, val in ((toy, 400, 40), (things, 600, 100)):
        for name, count, what in (("--train", train, "training"), ("--val", val, "validation")):
            text = f"{what} scenes (default: %(default)s)"
            parser.add_argument(name, type=int, default=count, metavar="N", help=text)
        parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def _source(
    sources: argparse._SubParsersAction,
    name: str,
    text: str,
    convert: Callable[[argparse.Namespace], int],
    *flags: str,
) -> argparse.ArgumentParser:
    parser = add_action(sources, name, text)
    parser.set_defaults(convert=convert)
    _add_flags(parser, *flags)
    _add_workers(parser, "parallel workers")
    return parser


def _add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=_FLAGS[name])


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="dataset folder to write; other splits in it are kept")


def _add_workers(parser: argparse._ActionsContainer, what: str) -> None:
    """Add --workers, which may precede or follow the name of a source, as it has no default."""
    text = f"number of {what} (default: one per processor)"
    parser.add_argument("--workers", type=int, metavar="N", default=argparse.SUPPRESS, help=text)


def run(args: argparse.Namespace) -> int:
    """Convert, check or generate."""
    workers = getattr(args, "workers", None)
    if workers is not None:
        check_workers(workers, least=1)
    if (args.source is None) == (args.check is None):
        raise InputError("name either a SOURCE or --check DATA; see seamseg prepare --help")
    return _check(args) if args.source is None else args.convert(args)


def _convert(args: argparse.Namespace) -> int:
    from seamseg.maps import prepare

    options, out = _options(args), args.out
    splits = _words(args.splits) if args.source in _PUBLIC else []
    files = _split_files(args, _CUSTOM[args.source][1]) if args.source in _CUSTOM else {}
    match args.source:
        case "cityscapes":
            result = prepare.prepare_cityscapes(args.root, out, splits, options)
        case "vistas":
            result = prepare.prepare_vistas(args.root, out, args.version, splits, options)
        case "coco":
            result = prepare.prepare_coco(args.root, out, splits, options)
        case "panoptic":
            result = prepare.prepare_panoptic(out, files, options)
        case "folders":
            result = prepare.prepare_folders(out, files, args.classes, args.divisor, tuple(args.suffixes), options)
        case "instances":
            result = prepare.prepare_instances(out, files, args.classes, options)
        case "cvat":
            result = prepare.prepare_cvat(out, files, args.classes, options)
        case "labelstudio":
            result = prepare.prepare_label_studio(out, files, args.classes, options)
        case _:
            result = _merge(args, options)
    _report(args, result)
    return 0


def _merge(args: argparse.Namespace, options: ConversionOptions) -> ConversionResult:
    from seamseg.maps.prepare.merge import MergeRules, merge_datasets, read_rules

    if len(args.parts) < 2:
        raise InputError("merge: expected two or more dataset folders and OUT")
    rules = MergeRules() if args.classes is None else read_rules(args.classes)
    return merge_datasets(args.parts, args.out, rules, options)


def _export(args: argparse.Namespace) -> int:
    from seamseg.maps.prepare.export import export_dataset

    formats = _words(args.format)
    counts = export_dataset(args.data, args.out, _words(args.split or ""), formats, _options(args), args.force)
    images = ", ".join(f"{counted(count, 'image')} of {name}" for name, count in counts.items())
    echo(f"{args.out}: {images} in {', '.join(dict.fromkeys(formats))}")
    return 0


def _toy_city(args: argparse.Namespace) -> int:
    from seamseg.maps.toy_city import generate_toy_city

    workers, shown = getattr(args, "workers", None), counter("toy city")
    scenes = generate_toy_city(args.root, args.train, args.val, args.seed, args.size, workers, shown)
    echo(f"{args.root}: {len(scenes)} scenes; next: seamseg prepare cityscapes {args.root} OUT")
    return 0


def _toy_things(args: argparse.Namespace) -> int:
    from seamseg.maps.toy_city import generate_toy_things

    workers, shown = getattr(args, "workers", None), counter("toy things")
    counts = generate_toy_things(args.out, args.train, args.val, args.seed, workers, shown)
    for split, classes in counts.items():
        echo(f"{args.out}/{split}: {', '.join(f'{count} {name}' for name, count in classes.items())}")
    return 0


def _options(args: argparse.Namespace) -> ConversionOptions:
    from seamseg.maps.prepare.convert import ConversionOptions

    given = {name: getattr(args, name) for name in ("workers", "hold_out", *_FLAGS) if hasattr(args, name)}
    return ConversionOptions(progress=progress, log=_print_message, **given)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _split_files(args: argparse.Namespace, words: str) -> dict[str, tuple[str, ...]]:
    splits: dict[str, tuple[str, ...]] = {}
    most = len(words.split())
    for name, *rest in args.split:
        if not most - words.count("[") <= len(rest) <= most:
            raise InputError(f"--split {' '.join([name, *rest])}: expected --split NAME {words}")
        if name in splits or not name or "/" in name:
            raise InputError(f"--split {name}: " + ("given twice" if name in splits else "not a valid list name"))
        splits[name] = tuple(rest)
    return splits


def _report(args: argparse.Namespace, result: ConversionResult) -> None:
    from seamseg.maps.folder import void_warning
    from seamseg.maps.prepare.check import crowd_warnings

    counts = ", ".join(f"{counted(count, 'image')} in {name}" for name, count in result.splits.items())
    classes = result.metadata
    echo(f"{args.out}: {counts}; {classes.num_stuff} stuff and {classes.num_thing} thing classes")
    if hasattr(args, "hold_out"):
        echo(f"classes: {first_names(classes.categories)}")
    for split, account in result.accounts.items():
        echo(*account.lines(split), sep="\n")
        if (problem := void_warning(account.void)) is not None:
            _print_message(f"{split}: {problem}")
        if classes.num_thing and not account.objects:
            _print_message(f"{split}: no object of {first_names(classes.categories[classes.num_stuff :])}")
    for text in crowd_warnings(classes, classes.images) if hasattr(args, "no_crowds") else []:
        _print_message(f"{text}; --no-crowds reads them as single objects")
    own_data = hasattr(args, "hold_out") and classes.num_thing > 0 and "train" in result.splits
    if own_data and not Path(args.out, "lst", "val.txt").is_file():
        echo(
            "next: prepare a split val for the scores, or repeat the command with --hold-out 0.2; then train small_r18"
        )
    elif own_data:
        out = shlex.quote(str(args.out))
        echo(f"next: seamseg train small_r18 {out} --log-dir runs/my --pre-train body:torchvision")


def _check(args: argparse.Namespace) -> int:
    """Check, print the report, and return 1 if there are errors."""
    from seamseg.maps.prepare.check import check_dataset

    workers = getattr(args, "workers", None)
    if args.samples < 0:
        raise InputError(f"--samples must be 0 or more, got {args.samples}")
    root = Path(args.check)
    try:
        report = check_dataset(root, workers, progress)
    except InputError as failure:
        # a folder without metadata.bin is a wrong argument; an unreadable data set is a result of the check
        raise SeamsegError(str(failure)) if (root / "metadata.bin").is_file() else failure from None
    # first: the findings must not be lost if the file cannot be written
    _print_report(report)
    if args.json is not None:
        write_json(args.json, report.as_json(), indent=1)
    if args.samples:
        from seamseg.maps.prepare.contact_sheet import write_contact_sheet

        path = Path(args.sheet or root / "check.jpg")
        try:
            shown = write_contact_sheet(path, report, args.samples, workers)
            echo(f"{path}: contact sheet of {counted(shown, 'image')}")
        except SeamsegError as failure:
            if args.sheet is not None:
                raise
            # the data set may be read-only
            echo(f"no sheet: {failure} (--sheet FILE writes it elsewhere)")
    return 1 if report.errors else 0


def _print_report(report: Report) -> None:
    splits = ", ".join(f"{count} in {name}" for name, count in report.splits.items()) or "in no list"
    echo(f"{report.root}: {counted(len(report.images), 'image')} ({splits})")
    sizes = [f"{w} x {h} ({n})" for (h, w), n in report.sizes]
    more = f" and {len(sizes) - 5} other sizes" if len(sizes) > 5 else ""
    echo(f"width x height: {', '.join(sizes[:5])}{more}; {report.void:.1%} of the pixels are void")
    for split, account in report.accounts.items():
        echo(*account.lines(split), sep="\n")
    echo()
    width = max([len(one_line(row["name"])) for row in report.classes] + [5])
    echo(f"{'class':{width}}  kind   images  segments  crowds  pixels")
    for row in report.classes:
        numbers = f"{row['images']:7}  {row['segments']:8}  {row['crowds']:6}  {row['share']:6.2%}"
        echo(f"{one_line(row['name']):{width}}  {row['kind']}  {numbers}")
    echo()
    for kind, problems in (("error", report.errors), ("warning", report.warnings)):
        for problem in problems[:_MAX_PRINTED]:
            echo(f"{kind}: {problem}")
        if len(problems) > _MAX_PRINTED:
            echo(f"{kind}: {len(problems) - _MAX_PRINTED} more; --json FILE lists them all")
    echo(f"errors: {len(report.errors)}, warnings: {len(report.warnings)}")


def _print_message(message: str) -> None:
    if not console.quiet:
        echo(f"seamseg prepare: {message}", file=sys.stderr)
