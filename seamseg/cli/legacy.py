"""Translate the arguments of the original's scripts (`scripts/`) to `seamseg` commands (docs/contract.md, section 1).

Each `from_*` function takes the arguments of a script of the original and returns arguments of `seamseg`.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import sys
from collections.abc import Callable, Sequence

from seamseg.cli.main import main
from seamseg.utils import process_settings
from seamseg.utils.launcher import is_main_process
from seamseg.utils.output import echo


def run_script(translate: Callable[[Sequence[str]], list[str]]) -> int:
    """Translate the arguments of a script of the original, run the command and return its exit code."""
    process_settings.apply()
    argv = translate(sys.argv[1:])
    if is_main_process():
        echo(f"this is now: seamseg {shlex.join(argv)}", file=sys.stderr)
    return main(argv)


def from_train_panoptic(argv: Sequence[str]) -> list[str]:
    """Translate `[--log_dir D] [--resume F] [--eval] [--pre_train [module:]F ...] CONFIG DATA`."""
    return _from_train("train_panoptic.py", "a panoptic network", argv)


def from_train_detection(argv: Sequence[str]) -> list[str]:
    """Translate the arguments of `train_detection.py`, as :func:`from_train_panoptic`."""
    return [*_from_train("train_detection.py", "a detection network", argv), "--set", "general.kind=detection"]


def from_train_instance_seg(argv: Sequence[str]) -> list[str]:
    """Translate the arguments of `train_instance_seg.py`, as :func:`from_train_panoptic`."""
    ours = _from_train("train_instance_seg.py", "an instance segmentation network", argv)
    return [*ours, "--set", "general.kind=instance_seg"]


def _from_train(name: str, what: str, argv: Sequence[str]) -> list[str]:
    parser = _parser(name, f"Train or evaluate {what}, as `seamseg train` does.")
    _option(parser, "--log_dir", metavar="D", help="run folder (default: runs/NAME for NAME.ini)")
    parser.add_argument("--resume", metavar="F", help="snapshot to continue from")
    parser.add_argument("--eval", action="store_true", help="only evaluate the weights of --resume or --pre_train")
    _option(parser, "--pre_train", metavar="[MODULE:]F", nargs="*", action="extend", default=[], help="initial weights")
    parser.add_argument("words", metavar="CONFIG DATA", nargs="*", help="INI file and dataset folder")
    args = parser.parse_intermixed_args(argv)
    _adopt_rank(args)

    # --pre_train consumes all words up to the next option, also CONFIG and DATA if they come last
    words, weights = list(args.words), list(args.pre_train)
    consumed = max(0, 2 - len(words))
    words += weights[len(weights) - consumed :] if consumed else []
    weights = weights[: len(weights) - consumed] if consumed else weights
    if len(words) != 2:
        parser.error("expected CONFIG and DATA" + (f", got {' '.join(words)}" if words else ""))
    # the original overwrites what the run folder holds, and freezes random weights
    ours = ["train", *words, *(["--eval"] if args.eval else ["--restart", "--legacy"])]
    ours += _given("--log-dir", args.log_dir) + _given("--resume", args.resume)
    return ours + [word for path in weights for word in ("--pre-train", path)]


def from_test_panoptic(argv: Sequence[str]) -> list[str]:
    """Translate `--meta M [--score_threshold P] [--iou_threshold P] [--min_area N] [--raw] CONFIG MODEL IN OUT`."""
    parser = _test_parser("test_panoptic.py", "Predict panoptic segmentations of", meta_required=True)
    _option(parser, "--score_threshold", metavar="P", type=float, default=0.5, help="default: %(default)s")
    _option(parser, "--iou_threshold", metavar="P", type=float, default=0.5, help="default: %(default)s")
    _option(parser, "--min_area", metavar="N", type=float, default=4096, help="default: %(default)s")
    args = parser.parse_args(argv)
    ours = _from_test(args, "overlay")
    ours += ["--score-threshold", str(args.score_threshold), "--overlap-threshold", str(args.iou_threshold)]
    return [*ours, "--min-area", str(int(args.min_area))]


def from_test_instance_seg(argv: Sequence[str]) -> list[str]:
    """Translate `[--meta M] [--threshold P] [--raw] CONFIG MODEL IN OUT`."""
    parser = _test_parser("test_instance_seg.py", "Detect and segment the objects in", meta_required=False)
    parser.add_argument(
        "--threshold", metavar="P", type=float, default=0.5, help="minimum score (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    ours = [*_from_test(args, "overlay-legacy"), "--score-threshold", str(args.threshold)]
    # the INI files of the original do not name their kind
    return [*ours, "--set", "general.kind=instance_seg"]


def _test_parser(name: str, does: str, meta_required: bool) -> argparse.ArgumentParser:
    parser = _parser(name, f"{does} a folder of images, as `seamseg predict` does.")
    parser.add_argument("--meta", metavar="M", required=meta_required, help="metadata.bin of the training data")
    _option(parser, "--log_dir", metavar="D", help="ignored: nothing is logged to files")
    parser.add_argument("--raw", action="store_true", help="write raw network outputs instead of images")
    parser.add_argument("config", metavar="CONFIG", help="INI file")
    parser.add_argument("model", metavar="MODEL", help="snapshot")
    parser.add_argument("inputs", metavar="INPUT_DIR", help="images, also in sub-folders")
    parser.add_argument("out", metavar="OUTPUT_DIR", help="folder for the outputs")
    return parser


def _from_test(args: argparse.Namespace, images: str) -> list[str]:
    """Return the command of a test script, which writes the format `images` unless raw outputs are requested."""
    _adopt_rank(args)
    ours = ["predict", args.model, args.inputs, args.out, "--config", args.config, *_given("--meta", args.meta)]
    # the original overwrites existing outputs
    return [*ours, "--restart", "--format", "raw" if args.raw else images]


def from_test_vistas(argv: Sequence[str]) -> list[str]:
    """Translate `[--scales LIST] [--flip] [--fusion-mode M] [--output-mode M] SNAPSHOT IN OUT`."""
    parser = _parser(
        "test_vistas.py", "Predict semantic segmentations with the published Vistas network, as `seamseg predict` does."
    )
    parser.add_argument("--scales", metavar="LIST", default="[0.7, 1, 1.2]", help="default: %(default)s")
    parser.add_argument("--flip", action="store_true", help="add the mirrored view of each scale")
    _option(
        parser,
        "--fusion-mode",
        metavar="M",
        choices=("mean", "voting", "max"),
        default="mean",
        help="how the views are combined",
    )
    _option(
        parser,
        "--output-mode",
        metavar="M",
        choices=("palette", "raw", "prob", "final"),
        default="final",
        help="palette, raw (greyscale), prob (with probabilities) or final, which is raw (default: %(default)s)",
    )
    parser.add_argument("--size", metavar="N", type=int, help="longest side of the network's input (default: 2048)")
    parser.add_argument("--world-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="wide_resnet38_deeplab_vistas.pth.tar")
    parser.add_argument("inputs", metavar="IN_DIR", help="images, also in sub-folders")
    parser.add_argument("out", metavar="OUT_DIR", help="folder for the outputs")
    args = parser.parse_args(argv)
    _adopt_rank(args)
    views = [f"{scale:.15g}" for scale in _scales(parser, args.scales)] + ["flip"] * args.flip
    formats = {"palette": "labels", "prob": "ids,probabilities"}.get(args.output_mode, "ids")
    ours = ["predict", args.snapshot, args.inputs, args.out, "--restart", "--format", formats, "--tta", ",".join(views)]
    size = [] if args.size is None else ["--size", str(args.size)]
    return [*ours, "--tta-fusion", args.fusion_mode, *size]


def _scales(parser: argparse.ArgumentParser, text: str) -> list[float]:
    """Return the numbers of a Python list, which the original evaluates as an expression."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, (int, float)) or not n > 0 for n in numbers):
        parser.error(f"--scales {text:.80}: expected a list of positive numbers such as [0.7, 1, 1.2]")
    return [float(n) for n in numbers]


def from_prepare_cityscapes(argv: Sequence[str]) -> list[str]:
    """Translate `ROOT OUT`."""
    return _from_prepare("cityscapes", "Cityscapes", "leftImg8bit/ and gtFine/", argv)


def from_prepare_vistas(argv: Sequence[str]) -> list[str]:
    """Translate `ROOT OUT`."""
    return _from_prepare("vistas", "Mapillary Vistas", "config.json, training/ and validation/", argv)


def _from_prepare(command: str, name: str, holds: str, argv: Sequence[str]) -> list[str]:
    parser = _parser(f"prepare_{command}.py", f"Convert {name} to a dataset folder, as `seamseg prepare` does.")
    parser.add_argument("root", metavar="ROOT", help=f"folder with {holds}")
    parser.add_argument("out", metavar="OUT", help="dataset folder to write")
    args = parser.parse_args(argv)
    return ["prepare", command, args.root, args.out]


def from_convert_resnet(argv: Sequence[str]) -> list[str]:
    """Translate `NET OUT`."""
    parser = _parser("convert_pytorch_resnet.py", "Convert torchvision weights, as `seamseg convert-backbone` does.")
    parser.add_argument("net", metavar="NET", help="resnet18, resnet34, resnet50, resnet101 or resnet152")
    parser.add_argument("out", metavar="OUT", help="file to write")
    args = parser.parse_args(argv)
    return ["convert-backbone", args.net, args.out, "--force"]


def from_train_imagenet(argv: Sequence[str]) -> list[str]:
    """Translate `CONFIG DATA [-j N] [-p N] [--resume F] [-e] [--dist-backend B] [--log-dir D] [--log-hist]`."""
    parser = _parser("train_imagenet.py", "Train a classifier, as `seamseg classify train` does.")
    _imagenet_options(parser, workers=2)
    parser.add_argument("--resume", metavar="PATH", help="checkpoint to continue from")
    parser.add_argument("-e", "--evaluate", action="store_true", help="only validate the checkpoint of --resume")
    _option(parser, "--log-dir", metavar="D", default=".", help="run folder (default: %(default)s)")
    _option(parser, "--log-hist", action="store_true", help="write histograms to TensorBoard")
    parser.add_argument("config", metavar="CONFIG", help="JSON file")
    parser.add_argument("data", metavar="DATA", help="folder with train/CLASS/* and val/CLASS/*")
    args = parser.parse_args(argv)
    _adopt_rank(args)
    options = ["--set", f"training.num_workers={args.workers}", "--set", f"training.log_interval={args.print_freq}"]
    if args.evaluate:
        if not args.resume:
            parser.error("--evaluate needs --resume PATH: without it there are no weights to validate")
        return ["classify", "validate", args.config, args.resume, args.data, *options]
    ours = ["classify", "train", args.config, args.data, "--restart", "--log-dir", args.log_dir]
    # the default of the original is an empty string
    ours += _given("--resume", args.resume or None)
    return [*ours, *(["--log-hist"] if args.log_hist else []), *options]


def from_test_imagenet(argv: Sequence[str]) -> list[str]:
    """Translate `CONFIG CHECKPOINT DATA [-j N] [-p N] [-c N] [-s N] [--ten_crops] [--dist-backend B]`."""
    parser = _parser("test_imagenet.py", "Validate a classifier, as `seamseg classify validate` does.")
    _imagenet_options(parser, workers=4)
    parser.add_argument("-c", "--crop", metavar="N", type=int, default=224, help="side of the crop (default: 224)")
    parser.add_argument("-s", "--scale", metavar="N", type=int, default=256, help="shorter side (default: 256)")
    _option(parser, "--ten_crops", action="store_true", help="average the logits of ten crops")
    parser.add_argument("config", metavar="CONFIG", help="JSON file")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint")
    parser.add_argument("data", metavar="DATA", help="folder with val/CLASS/*")
    args = parser.parse_args(argv)
    _adopt_rank(args)
    ours = ["classify", "validate", args.config, args.checkpoint, args.data]
    ours += ["--crop", str(args.crop), "--scale", str(args.scale), *(["--ten-crops"] if args.ten_crops else [])]
    return [*ours, "--set", f"training.num_workers={args.workers}"]


def _imagenet_options(parser: argparse.ArgumentParser, workers: int) -> None:
    parser.add_argument("-j", "--workers", metavar="N", type=int, default=workers, help="default: %(default)s")
    _option(parser, "--print-freq", metavar="N", type=int, default=10, short="-p", help="default: %(default)s")
    _option(parser, "--dist-backend", metavar="B", help="ignored: NCCL on GPUs, gloo on the CPU")


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=description)
    # passed by the launchers of old PyTorch; torchrun sets the environment instead
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    return parser


def _adopt_rank(args: argparse.Namespace) -> None:
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))


def _option(parser: argparse.ArgumentParser, name: str, short: str | None = None, **options: object) -> None:
    """Add an option of the original, with underscores as well as hyphens in its name."""
    words = name[2:].replace("-", "_")
    names = dict.fromkeys(([short] if short else []) + [name, f"--{words}", f"--{words.replace('_', '-')}"])
    parser.add_argument(*names, **options)  # type: ignore[arg-type]


def _given(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]
