"""The commands of the original program, translated into ours (SPEC section 1 "Commands").

Each function takes the original's arguments and runs the `seamseg` command that does the same, so that old shell
scripts go on working. Options may be written with underscores or dashes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from seamseg.cli import malloc
from seamseg.cli.main import main

Translator = Callable[[Sequence[str]], list[str]]


def translate_train(argv: Sequence[str]) -> list[str]:
    """Arguments of `train_panoptic.py` as those of `seamseg train`."""
    parser = _parser("train_panoptic.py", "Train a panoptic network; the same as `seamseg train`.", launched=True)
    _option(parser, "--log_dir", metavar="D", default=".", help="run folder (default: the current one)")
    _option(parser, "--resume", metavar="F", help="continue from this snapshot")
    _option(parser, "--eval", action="store_true", help="only score the weights of --resume or --pre_train")
    _option(
        parser,
        "--pre_train",
        metavar="[MODULE:]F",
        nargs="*",
        action="extend",
        default=[],
        help="start from snapshots, or from the weights of one module",
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="INI file")
    parser.add_argument("data", metavar="DATA", nargs="?", help="dataset folder")
    args = parser.parse_args(argv)
    config, data, pre_train = _unswallow(parser, args)
    _adopt_rank(args)
    return [
        *("train", config, data, f"--log-dir={args.log_dir}"),
        *([f"--resume={args.resume}"] if args.resume else []),
        *(f"--pre-train={weights}" for weights in pre_train),
        *(["--eval"] if args.eval else []),
    ]


def translate_test(argv: Sequence[str]) -> list[str]:
    """Arguments of `test_panoptic.py` as those of `seamseg predict`."""
    parser = _parser("test_panoptic.py", "Panoptic pictures of photos; the same as `seamseg predict`.", launched=True)
    _option(parser, "--meta", metavar="M", required=True, help="metadata.bin of the data set trained on")
    _option(parser, "--log_dir", metavar="D", help="ignored: the log goes to the terminal")
    _option(parser, "--score_threshold", metavar="P", default="0.5", help="least score of a detection (default: .5)")
    _option(parser, "--iou_threshold", metavar="P", default="0.5", help="greatest overlap (default: .5)")
    _option(parser, "--min_area", metavar="N", default="4096", help="stuff of fewer pixels is void (default: 4096)")
    _option(parser, "--raw", action="store_true", help="write what the network says instead of pictures")
    for name, metavar, text in (
        ("config", "CONFIG", "INI file"),
        ("model", "MODEL", "snapshot"),
        ("inputs", "INPUT_DIR", "folder of photos"),
        ("outputs", "OUTPUT_DIR", "folder for the outputs"),
    ):
        parser.add_argument(name, metavar=metavar, help=text)
    args = parser.parse_args(argv)
    if args.log_dir is not None:
        print(f"{parser.prog}: --log_dir is ignored: the log goes to the terminal", file=sys.stderr)
    _adopt_rank(args)
    return [
        *("predict", args.model, args.inputs, args.outputs, f"--config={args.config}", f"--meta={args.meta}"),
        *(f"--score-threshold={args.score_threshold}", f"--overlap-threshold={args.iou_threshold}"),
        *(f"--min-area={args.min_area}", f"--format={'raw' if args.raw else 'overlay'}"),
    ]


def translate_cityscapes(argv: Sequence[str]) -> list[str]:
    """Arguments of `prepare_cityscapes.py` as those of `seamseg prepare cityscapes`."""
    parser = _parser("prepare_cityscapes.py", "Convert Cityscapes; the same as `seamseg prepare cityscapes`.")
    parser.add_argument("root", metavar="ROOT", help="folder with leftImg8bit/ and gtFine/ or gtCoarse/")
    parser.add_argument("out", metavar="OUT", help="dataset folder to write")
    args = parser.parse_args(argv)
    return ["prepare", "cityscapes", args.root, args.out]


def translate_backbone(argv: Sequence[str]) -> list[str]:
    """Arguments of `convert_pytorch_resnet.py` as those of `seamseg convert-backbone`."""
    parser = _parser("convert_pytorch_resnet.py", "Convert a ResNet; the same as `seamseg convert-backbone`.")
    parser.add_argument("net", metavar="NET", help="resnet18, resnet34, resnet50, resnet101 or resnet152")
    parser.add_argument("out", metavar="OUT", help="file to write")
    args = parser.parse_args(argv)
    return ["convert-backbone", args.net, args.out]


def run(translate: Translator) -> int:
    """Run the command that this process' arguments translate to, and return its exit code."""
    malloc.keep_buffers()
    return main(translate(sys.argv[1:]))


def _parser(prog: str, description: str, launched: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if launched:
        _option(parser, "--local_rank", type=int, metavar="N", help="given by launchers; LOCAL_RANK does as well")
    return parser


def _option(parser: argparse.ArgumentParser, name: str, **kwargs) -> None:
    dashed = "--" + name[2:].replace("_", "-")
    parser.add_argument(*dict.fromkeys((name, dashed)), **kwargs)


def _adopt_rank(args: argparse.Namespace) -> None:
    # old launchers say it in an argument only
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))


def _unswallow(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[str, str, list[str]]:
    """CONFIG, DATA and the weights, also from `--pre_train F CONFIG DATA`, where the option takes all three words."""
    places = [word for word in (args.config, args.data) if word is not None]
    missing = 2 - len(places)
    weights = list(args.pre_train)
    if missing > len(weights):
        parser.error("CONFIG and DATA are needed")
    if missing:
        places += weights[-missing:]
        weights = weights[:-missing]
    return places[0], places[1], weights
