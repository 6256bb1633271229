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
from seamseg.utils import process
from seamseg.utils.distributed import is_main_process
from seamseg.utils.output import echo


def run_script(translate: Callable[[Sequence[str]], list[str]]) -> int:
    """Translate the arguments of a script of the original, run the command and return its exit code."""
    process.apply_settings()
    argv = translate(sys.argv[1:])
    if is_main_process():
        echo(f"this is now: seamseg {shlex.join(argv)}", file=sys.stderr)
    return main(argv)


class _Parser(argparse.ArgumentParser):
    """The arguments of a script: those of `words` by position, options with underscores as well as hyphens."""

    def __init__(self, prog: str, description: str, words: str = "") -> None:
        super().__init__(prog=prog, description=description)
        # passed by the launchers of old PyTorch; torchrun sets the environment instead
        self.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
        for word in words.split():
            self.add_argument(word.lower(), metavar=word)

    def option(self, *names: str, **options: object) -> None:
        """Add an option of the original."""
        long = names[-1][2:].replace("-", "_")
        spellings = dict.fromkeys([*names, f"--{long}", f"--{long.replace('_', '-')}"])
        self.add_argument(*spellings, **options)  # type: ignore[arg-type]

    def parse(self, argv: Sequence[str], intermixed: bool = False) -> argparse.Namespace:
        """Parse the arguments, and adopt the rank of an old launcher."""
        args = self.parse_intermixed_args(argv) if intermixed else self.parse_args(argv)
        if args.local_rank is not None:
            os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
        return args


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
    parser = _Parser(name, f"Train or evaluate {what}, as `seamseg train` does.")
    parser.option("--log_dir", metavar="D", help="run folder (default: runs/NAME for NAME.ini)")
    parser.option("--resume", metavar="F", help="snapshot to continue from")
    parser.option("--eval", action="store_true", help="only evaluate the weights of --resume or --pre_train")
    parser.option("--pre_train", metavar="[MODULE:]F", nargs="*", action="extend", default=[], help="initial weights")
    parser.add_argument("words", metavar="CONFIG DATA", nargs="*", help="INI file and dataset folder")
    args = parser.parse(argv, intermixed=True)

    # --pre_train consumes all words up to the next option, also CONFIG and DATA if they come last
    own = len(args.pre_train) - max(0, 2 - len(args.words))
    words, weights = [*args.words, *args.pre_train[max(own, 0) :]], args.pre_train[: max(own, 0)]
    if len(words) != 2:
        parser.error("expected CONFIG and DATA" + (f", got {' '.join(words)}" if words else ""))
    # the original overwrites what the run folder holds, and freezes random weights
    ours = ["train", *words, *(["--eval"] if args.eval else ["--restart", "--legacy"])]
    ours += _given("--log-dir", args.log_dir) + _given("--resume", args.resume)
    return ours + [word for path in weights for word in ("--pre-train", path)]


def from_test_panoptic(argv: Sequence[str]) -> list[str]:
    """Translate `--meta M [--score_threshold P] [--iou_threshold P] [--min_area N] [--raw] CONFIG MODEL IN OUT`."""
    parser = _test_parser("test_panoptic.py", "Predict panoptic segmentations of", meta_required=True)
    parser.option("--score_threshold", metavar="P", type=float, default=0.5, help="default: %(default)s")
    parser.option("--iou_threshold", metavar="P", type=float, default=0.5, help="default: %(default)s")
    parser.option("--min_area", metavar="N", type=float, default=4096, help="default: %(default)s")
    args = parser.parse(argv)
    ours = _from_test(args, "overlay")
    ours += ["--score-threshold", str(args.score_threshold), "--overlap-threshold", str(args.iou_threshold)]
    return [*ours, "--min-area", str(int(args.min_area))]


def from_test_instance_seg(argv: Sequence[str]) -> list[str]:
    """Translate `[--meta M] [--threshold P] [--raw] CONFIG MODEL IN OUT`."""
    parser = _test_parser("test_instance_seg.py", "Detect and segment the objects in", meta_required=False)
    parser.option("--threshold", metavar="P", type=float, default=0.5, help="minimum score (default: %(default)s)")
    args = parser.parse(argv)
    ours = [*_from_test(args, "overlay-legacy"), "--score-threshold", str(args.threshold)]
    # the INI files of the original do not name their kind
    return [*ours, "--set", "general.kind=instance_seg"]


def _test_parser(name: str, does: str, meta_required: bool) -> _Parser:
    words = "CONFIG MODEL INPUT_DIR OUTPUT_DIR"
    parser = _Parser(name, f"{does} a folder of images, as `seamseg predict` does.", words)
    parser.option("--meta", metavar="M", required=meta_required, help="metadata.bin of the training data")
    parser.option("--log_dir", metavar="D", help="ignored: nothing is logged to files")
    parser.option("--raw", action="store_true", help="write raw network outputs instead of images")
    return parser


def _from_test(args: argparse.Namespace, images: str) -> list[str]:
    ours = ["predict", args.model, args.input_dir, args.output_dir, "--config", args.config]
    # the original overwrites existing outputs
    return [*ours, *_given("--meta", args.meta), "--restart", "--format", "raw" if args.raw else images]


def from_test_vistas(argv: Sequence[str]) -> list[str]:
    """Translate `[--scales LIST] [--flip] [--fusion-mode M] [--output-mode M] SNAPSHOT IN OUT`."""
    what = "Predict semantic segmentations with the published Vistas network, as `seamseg predict` does."
    parser = _Parser("test_vistas.py", what, "SNAPSHOT IN_DIR OUT_DIR")
    parser.option("--scales", metavar="LIST", default="[0.7, 1, 1.2]", help="default: %(default)s")
    parser.option("--flip", action="store_true", help="add the mirrored view of each scale")
    fusions, outputs = ("mean", "voting", "max"), ("palette", "raw", "prob", "final")
    parser.option("--fusion-mode", metavar="M", choices=fusions, default="mean", help="how the views are combined")
    text = "palette, raw (greyscale), prob (with probabilities) or final, which is raw (default: %(default)s)"
    parser.option("--output-mode", metavar="M", choices=outputs, default="final", help=text)
    parser.option("--size", metavar="N", type=int, help="longest side of the network's input (default: 2048)")
    parser.option("--world-size", type=int, help=argparse.SUPPRESS)
    parser.option("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse(argv)
    try:
        # a Python list, which the original evaluates as an expression
        value = ast.literal_eval(args.scales)
        scales = [1.0 * number for number in (value if isinstance(value, (list, tuple)) else [value])]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        scales = []
    if not scales or not all(number > 0 for number in scales):
        parser.error(f"--scales {args.scales:.80}: expected a list of positive numbers such as [0.7, 1, 1.2]")
    views = [f"{scale:.15g}" for scale in scales] + ["flip"] * args.flip
    formats = {"palette": "labels", "prob": "ids,probabilities"}.get(args.output_mode, "ids")
    ours = ["predict", args.snapshot, args.in_dir, args.out_dir, "--restart", "--format", formats]
    ours += ["--tta", ",".join(views), "--tta-fusion", args.fusion_mode]
    return ours if args.size is None else [*ours, "--size", str(args.size)]


def from_prepare_cityscapes(argv: Sequence[str]) -> list[str]:
    """Translate `ROOT OUT`."""
    return _from_prepare("cityscapes", "Cityscapes", argv)


def from_prepare_vistas(argv: Sequence[str]) -> list[str]:
    """Translate `ROOT OUT`."""
    return _from_prepare("vistas", "Mapillary Vistas", argv)


def _from_prepare(command: str, name: str, argv: Sequence[str]) -> list[str]:
    what = f"Convert {name} to a dataset folder, as `seamseg prepare` does."
    args = _Parser(f"prepare_{command}.py", what, "ROOT OUT").parse(argv)
    return ["prepare", command, args.root, args.out]


def from_convert_resnet(argv: Sequence[str]) -> list[str]:
    """Translate `NET OUT`."""
    what = "Convert torchvision weights, as `seamseg convert-backbone` does."
    args = _Parser("convert_pytorch_resnet.py", what, "NET OUT").parse(argv)
    return ["convert-backbone", args.net, args.out, "--force"]


def from_train_imagenet(argv: Sequence[str]) -> list[str]:
    """Translate `CONFIG DATA [-j N] [-p N] [--resume F] [-e] [--dist-backend B] [--log-dir D] [--log-hist]`."""
    parser = _Parser("train_imagenet.py", "Train a classifier, as `seamseg classify train` does.", "CONFIG DATA")
    _imagenet_options(parser, workers=2)
    parser.option("--resume", metavar="PATH", help="checkpoint to continue from")
    parser.option("-e", "--evaluate", action="store_true", help="only validate the checkpoint of --resume")
    parser.option("--log-dir", metavar="D", default=".", help="run folder (default: %(default)s)")
    parser.option("--log-hist", action="store_true", help="write histograms to TensorBoard")
    args = parser.parse(argv)
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
    what = "Validate a classifier, as `seamseg classify validate` does."
    parser = _Parser("test_imagenet.py", what, "CONFIG CHECKPOINT DATA")
    _imagenet_options(parser, workers=4)
    parser.option("-c", "--crop", metavar="N", type=int, default=224, help="side of the crop (default: 224)")
    parser.option("-s", "--scale", metavar="N", type=int, default=256, help="shorter side (default: 256)")
    parser.option("--ten_crops", action="store_true", help="average the logits of ten crops")
    args = parser.parse(argv)
    ours = ["classify", "validate", args.config, args.checkpoint, args.data]
    ours += ["--crop", str(args.crop), "--scale", str(args.scale), *(["--ten-crops"] if args.ten_crops else [])]
    return [*ours, "--set", f"training.num_workers={args.workers}"]


def _imagenet_options(parser: _Parser, workers: int) -> None:
    parser.option("-j", "--workers", metavar="N", type=int, default=workers, help="default: %(default)s")
    parser.option("-p", "--print-freq", metavar="N", type=int, default=10, help="default: %(default)s")
    parser.option("--dist-backend", metavar="B", help="ignored: NCCL on GPUs, gloo on the CPU")


def _given(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]
