"""Convert a data set to the folder format that `seamseg train` and `seamseg evaluate` read, or generate one.

seamseg prepare cityscapes CITYSCAPES OUT     raw Cityscapes (leftImg8bit/, gtFine/, gtCoarse/) to a dataset folder
seamseg prepare toy-city RAW                  a made-up city of street scenes, laid out as raw Cityscapes

Each has its own --help. To try everything without a download:

  seamseg prepare toy-city toy_raw --train 200 --val 40
  seamseg prepare cityscapes toy_raw toy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from seamseg.engine.progress import counter, is_quiet, progress
from seamseg.errors import InputError

_CITYSCAPES = """Raw Cityscapes to a dataset folder.

Unpack leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip (and leftImg8bit_trainextra.zip, gtCoarse.zip) into one
folder; any part of them will do. What it has of train, val and train_extra becomes the splits train, val and coarse:

  seamseg prepare cityscapes /data/cityscapes data/cityscapes
  seamseg prepare cityscapes /data/cityscapes data/cityscapes --splits val --workers 4

Photos are hard-linked where the disk allows it, else copied. Stop it at any time: the same command goes on from there.
"""

_TOY_CITY = """A made-up city of street scenes, written as raw Cityscapes.

It has leftImg8bit/ and gtFine/ with the official ids. The same seed gives the same pictures. To train on it, convert
it like the real one:

  seamseg prepare toy-city toy_raw --train 200 --val 40 --size 256x512
  seamseg prepare cityscapes toy_raw toy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A sub-command a source."""
    sources = parser.add_subparsers(dest="source", metavar="SOURCE", required=True)

    cityscapes = _source(sources, "cityscapes", _CITYSCAPES, _cityscapes)
    cityscapes.add_argument("root", metavar="ROOT", help="folder with leftImg8bit/ and gtFine/ or gtCoarse/")
    cityscapes.add_argument("out", metavar="OUT", help="dataset folder to write; splits it has already stay")
    cityscapes.add_argument(
        "--splits",
        default="train,val,train_extra",
        metavar="A,B",
        help="which of train, val, train_extra (default: all that ROOT has)",
    )
    cityscapes.add_argument("--copy", action="store_true", help="copy photos even where a hard link would do")

    toy = _source(sources, "toy-city", _TOY_CITY, _toy_city)
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


def run(args: argparse.Namespace) -> int:
    """Convert or generate."""
    if args.workers is not None and args.workers < 1:
        raise InputError(f"--workers must be at least 1, got {args.workers}")
    return args.convert(args)


def _source(
    sources: argparse._SubParsersAction, name: str, text: str, convert: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sources.add_parser(
        name, help=text.partition("\n")[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(convert=convert)
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a processor)")
    # given here they must not undo `seamseg prepare --quiet SOURCE`
    parser.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="no progress")
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show a traceback when something fails"
    )
    return parser


def _cityscapes(args: argparse.Namespace) -> int:
    from seamseg.data.prepare.cityscapes import prepare_cityscapes

    splits = [name.strip() for name in args.splits.split(",") if name.strip()]
    done = prepare_cityscapes(args.root, args.out, splits, args.workers, progress, _say, args.copy)
    counts = ", ".join(
        f"{count} {'image' if count == 1 else 'images'} in {name}" for name, count in done.splits.items()
    )
    print(f"{args.out}: {counts}; {done.metadata.num_stuff} stuff and {done.metadata.num_thing} thing classes")
    return 0


def _toy_city(args: argparse.Namespace) -> int:
    from seamseg.data.prepare.toy_city import generate_toy_city

    shown = counter("toy city")
    scenes = generate_toy_city(args.root, args.train, args.val, args.seed, args.size, args.workers, shown)
    print(f"{args.root}: {len(scenes)} scenes; next: seamseg prepare cityscapes {args.root} OUT")
    return 0


def _say(message: str) -> None:
    if not is_quiet():
        print(f"seamseg prepare: {message}", file=sys.stderr)


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, as 256x512")
    return int(height), int(width)
