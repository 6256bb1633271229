"""Convert a data set to the folder format that `seamseg train` and `seamseg evaluate` read, check or generate one.

seamseg prepare cityscapes ROOT OUT           raw Cityscapes, unpacked or as zip files
seamseg prepare vistas ROOT OUT               Mapillary Vistas 1.x and 2.0
seamseg prepare coco ROOT OUT                 COCO panoptic
seamseg prepare panoptic OUT --split ...      your own data: COCO panoptic JSON and PNG
seamseg prepare folders OUT --split ...       your own data: photos, label pictures, instance pictures
seamseg prepare instances OUT --split ...     your own data: COCO instances, and label pictures for the stuff
seamseg prepare merge DATA DATA OUT           dataset folders to one
seamseg prepare export DATA OUT               dataset folder to COCO panoptic, raw Cityscapes or Vistas
seamseg prepare --check DATA                  what is wrong with a dataset folder
seamseg prepare toy-city RAW                  a made-up city of street scenes, laid out as raw Cityscapes

Each has its own --help with examples. To try everything without a download:

  seamseg prepare toy-city toy_raw --train 200 --val 40
  seamseg prepare cityscapes toy_raw toy
  seamseg prepare --check toy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from seamseg.cli import prepare_texts as texts
from seamseg.cli.prepare_check import add_check_arguments, run_check
from seamseg.cli.prepare_export import add_export, run_export
from seamseg.utils.errors import InputError
from seamseg.utils.progress import counter, is_quiet, progress

if TYPE_CHECKING:
    from seamseg.prepare.convert import Options, Prepared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A sub-command a source, and --check."""
    parser.add_argument(
        "--check", metavar="DATA", help="check a dataset folder; the same as `seamseg prepare check DATA`"
    )
    add_check_arguments(parser)
    sources = parser.add_subparsers(dest="source", metavar="SOURCE")

    cityscapes = _converter(sources, "cityscapes", texts.CITYSCAPES, _cityscapes)
    cityscapes.add_argument(
        "root", metavar="ROOT", help="folder with leftImg8bit/ and gtFine/ or gtCoarse/, or zip files"
    )
    _add_out(cityscapes)
    _add_splits(cityscapes, "train,val,train_extra")

    vistas = _converter(sources, "vistas", texts.VISTAS, _vistas)
    vistas.add_argument("root", metavar="ROOT", help="folder with config.json, training/ and validation/, or zip file")
    _add_out(vistas)
    vistas.add_argument("--version", choices=["1.2", "2.0"], help="which labels (default: those that ROOT has)")
    _add_splits(vistas, "training,validation")

    coco = _converter(sources, "coco", texts.COCO, _coco)
    coco.add_argument("root", metavar="ROOT", help="folder with train2017/, val2017/, annotations/, or zip files")
    _add_out(coco)
    _add_splits(coco, "train2017,val2017")

    panoptic = _converter(sources, "panoptic", texts.PANOPTIC, _panoptic)
    _add_out(panoptic)
    _add_own(panoptic, ("NAME", "PHOTOS", "JSON", "MASKS"), 4)

    folders = _converter(sources, "folders", texts.FOLDERS, _folders)
    _add_out(folders)
    _add_own(folders, ("NAME", "PHOTOS LABELS [INSTANCES]"), "+")
    folders.add_argument("--classes", metavar="FILE", required=True, help="class list, INI or JSON")
    folders.add_argument("--divisor", type=int, default=0, metavar="N", help="labels hold class * N + instance")
    folders.add_argument(
        "--suffixes",
        nargs=3,
        default=("", "", ""),
        metavar=("PHOTO", "LABEL", "INSTANCE"),
        help="what names end in before their endings",
    )

    instances = _converter(sources, "instances", texts.INSTANCES, _instances)
    _add_out(instances)
    _add_own(instances, ("NAME", "PHOTOS JSON [LABELS]"), "+")
    instances.add_argument("--classes", metavar="FILE", help="class list, INI or JSON; needed with label pictures")

    merge = _converter(sources, "merge", texts.MERGE, _merge)
    merge.add_argument("parts", metavar="DATA", nargs="+", help="dataset folders, two or more")
    _add_out(merge)
    merge.add_argument("--classes", metavar="FILE", help="JSON: what becomes of which class (default: by name)")

    add_export(_converter(sources, "export", texts.EXPORT, run_export))

    check = _source(sources, "check", texts.CHECK, run_check)
    check.add_argument("check", metavar="DATA", help="dataset folder")
    add_check_arguments(check)

    toy = _source(sources, "toy-city", texts.TOY_CITY, _toy_city)
    toy.add_argument("root", metavar="RAW", help="folder to write")
    toy.add_argument("--train", type=int, default=400, metavar="N", help="training scenes (default: %(default)s)")
    toy.add_argument("--val", type=int, default=40, metavar="N", help="validation scenes (default: %(default)s)")
    toy.add_argument("--seed", type=int, default=0, help="another seed, another city (default: %(default)s)")
    toy.add_argument(
        "--size",
        type=_size,
        default=(256, 512),
        metavar="HxW",
        help="height and width of landscape scenes (default: 256x512)",
    )
    _add_workers(toy)


def run(args: argparse.Namespace) -> int:
    """Convert, check or generate."""
    workers = getattr(args, "workers", None)
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    if args.source is None:
        if args.check is None:
            raise InputError("nothing to do: name a SOURCE or --check DATA; see seamseg prepare --help")
        return run_check(args)
    if args.check is not None and args.source != "check":
        raise InputError(f"--check DATA and the source {args.source} do not go together; run them one after the other")
    return args.convert(args)


def _source(
    sources: argparse._SubParsersAction, name: str, text: str, convert: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sources.add_parser(
        name, help=text.partition("\n")[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(convert=convert)
    # given here they must not undo `seamseg prepare --quiet SOURCE`
    parser.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="no progress")
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show a traceback when something fails"
    )
    return parser


def _converter(
    sources: argparse._SubParsersAction, name: str, text: str, convert: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = _source(sources, name, text, convert)
    parser.add_argument("--copy", action="store_true", help="copy photos even where a hard link would do")
    parser.add_argument("--symlink", action="store_true", help="make symbolic links to the photos")
    _add_workers(parser)
    return parser


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="how many work at a time (default: one a processor)",
    )


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="dataset folder to write; splits it has already stay")


def _add_splits(parser: argparse.ArgumentParser, splits: str) -> None:
    parser.add_argument(
        "--splits",
        default=splits,
        metavar="A,B",
        help=f"which of {splits.replace(',', ', ')} (default: all that ROOT has)",
    )


def _add_own(parser: argparse.ArgumentParser, words: tuple[str, ...], nargs: int | str) -> None:
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        nargs=nargs,
        metavar=words,
        help="a list of images and where its files are; may be repeated",
    )


def _cityscapes(args: argparse.Namespace) -> int:
    from seamseg.prepare.cityscapes import prepare_cityscapes

    o = _options(args)
    done = prepare_cityscapes(args.root, args.out, _names(args), o.workers, o.progress, o.say, o.copy, o.symlink)
    return _done(args, done)


def _vistas(args: argparse.Namespace) -> int:
    from seamseg.prepare.vistas import prepare_vistas

    return _done(args, prepare_vistas(args.root, args.out, args.version, _names(args), _options(args)))


def _coco(args: argparse.Namespace) -> int:
    from seamseg.prepare.panoptic import prepare_coco

    return _done(args, prepare_coco(args.root, args.out, _names(args), _options(args)))


def _panoptic(args: argparse.Namespace) -> int:
    from seamseg.prepare.panoptic import prepare_panoptic

    splits = {name: (rest[0], rest[1], rest[2]) for name, rest in _own_splits(args, "PHOTOS JSON MASKS", (3,)).items()}
    return _done(args, prepare_panoptic(args.out, splits, _options(args)))


def _folders(args: argparse.Namespace) -> int:
    from seamseg.prepare.label_folders import prepare_folders

    splits = _own_splits(args, "PHOTOS LABELS [INSTANCES]", (2, 3))
    photo, label, instance = args.suffixes
    done = prepare_folders(args.out, splits, args.classes, args.divisor, (photo, label, instance), _options(args))
    return _done(args, done)


def _instances(args: argparse.Namespace) -> int:
    from seamseg.prepare.coco_instances import prepare_instances

    splits = _own_splits(args, "PHOTOS JSON [LABELS]", (2, 3))
    return _done(args, prepare_instances(args.out, splits, args.classes, _options(args)))


def _merge(args: argparse.Namespace) -> int:
    from seamseg.prepare.merge import MergeRules, merge_datasets, read_rules

    if len(args.parts) < 2:
        raise InputError("merge takes two or more dataset folders and OUT")
    rules = MergeRules() if args.classes is None else read_rules(args.classes)
    return _done(args, merge_datasets(args.parts, args.out, rules, _options(args)))


def _toy_city(args: argparse.Namespace) -> int:
    from seamseg.toy_city import generate_toy_city

    shown = counter("toy city")
    workers = getattr(args, "workers", None)
    scenes = generate_toy_city(args.root, args.train, args.val, args.seed, args.size, workers, shown)
    print(f"{args.root}: {len(scenes)} scenes; next: seamseg prepare cityscapes {args.root} OUT")
    return 0


def _options(args: argparse.Namespace) -> Options:
    from seamseg.prepare.convert import Options

    return Options(getattr(args, "workers", None), progress, _say, args.copy, args.symlink)


def _names(args: argparse.Namespace) -> list[str]:
    return [name.strip() for name in args.splits.split(",") if name.strip()]


def _own_splits(args: argparse.Namespace, words: str, counts: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    splits: dict[str, tuple[str, ...]] = {}
    for name, *rest in args.split:
        if len(rest) not in counts:
            raise InputError(f"--split {' '.join([name, *rest])}: expected --split NAME {words}")
        if name in splits or not name or "/" in name:
            raise InputError(f"--split {name}: " + ("given twice" if name in splits else "not a name for a list"))
        splits[name] = tuple(rest)
    return splits


def _done(args: argparse.Namespace, done: Prepared) -> int:
    counts = ", ".join(
        f"{count} {'image' if count == 1 else 'images'} in {name}" for name, count in done.splits.items()
    )
    print(f"{args.out}: {counts}; {done.metadata.num_stuff} stuff and {done.metadata.num_thing} thing classes")
    return 0


def _say(message: str) -> None:
    if not is_quiet():
        print(f"seamseg prepare: {message}", file=sys.stderr)


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, as 256x512")
    return int(height), int(width)
