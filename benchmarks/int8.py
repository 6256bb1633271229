"""Score a model in every format it can be exported to: the network in fp32 and bf16, ONNX in fp32 and int8.

    python benchmarks/int8.py runs/demo runs/demo/toy_city/data [--size 256x256] [--calibrate 64] [--split val]

Prints PQ, mIoU and mask AP on the split, and the median CPU seconds (all threads) of a picture, as others may use the
machine; the formats take turns. `--only-time` leaves the scores out, which random weights do not have.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

NETWORKS = ("fp32", "bf16")
FILES = ("onnx fp32", "onnx int8")
OVERRIDES = ("general.eval_coco=yes",)
"""The scores include AP."""


def main() -> None:
    """Export, score, time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--size", metavar="HxW", help="input of the files (default: that of seamseg export)")
    parser.add_argument("--calibrate", type=int, default=64, metavar="N")
    parser.add_argument("--split", default="val")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-time", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export(args, Path(folder))
        runs = {name: runner(args.model, args.data, args.split, name) for name in NETWORKS}
        runs |= {name: runner(path, args.data, args.split) for name, path in files.items()}
        seconds = {name: statistics.median(values) for name, values in times(runs, args.rounds).items()}
        models: dict[str, tuple[Any, str]] = {name: (args.model, name) for name in NETWORKS}
        models |= {name: (path, "fp32") for name, path in files.items()}
        first = seconds[NETWORKS[0]]
        for name, (model, precision) in models.items():
            line = "" if args.only_time else score(model, args.data, args.split, precision)
            print(f"{name:10} {seconds[name]:.3f} CPU s a picture ({first / seconds[name]:.2f}x)  {line}", flush=True)


def export(args: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Return the exported files by format."""
    from seamseg.deploy.export import ExportOptions, export_model

    match = re.fullmatch(r"(\d+)x(\d+)", args.size) if args.size else None
    size = None if match is None else (int(match[1]), int(match[2]))
    files = {name: folder / f"{name.split()[1]}.onnx" for name in FILES}
    plain = ExportOptions(size, overrides=OVERRIDES)
    export_model(args.model, files["onnx fp32"], plain)
    export_model(args.model, files["onnx int8"], replace(plain, int8=args.data, calibrate=args.calibrate))
    return files


def runner(model: Any, data: str, split: str, precision: str = "fp32") -> Callable[[], object]:
    """Return a function that predicts the first picture of a split."""
    from seamseg.data.folder import DatasetFolder
    from seamseg.inference.options import InferenceOptions
    from seamseg.inference.predictor import load_predictor

    folder = DatasetFolder(data)
    photo = folder.image_path(folder.split(split)[0].id)
    predictor = load_predictor(model, "cpu", options=InferenceOptions(precision=precision))
    return lambda: predictor.predict(photo)


def times(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each run, in turns, after one to warm up."""
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if number:
                measured[name].append(time.process_time() - start)
    return measured


def score(model: Any, data: str, split: str, precision: str) -> str:
    """Return the line of the scores of a model."""
    from seamseg.checkpoints.missing_model import is_exported
    from seamseg.inference.network import TrainedModel
    from seamseg.inference.options import InferenceOptions
    from seamseg.utils.distributed import World
    from seamseg.validation.evaluate import EvaluationOptions, evaluate_model
    from seamseg.validation.validator import Validator

    if is_exported(model):
        return evaluate_model(model, data, EvaluationOptions(split, device="cpu", quiet=True)).scores.line()
    options = InferenceOptions(overrides=OVERRIDES, precision=precision)
    opened = TrainedModel(model, "cpu", None, None, options)
    net = opened.build(options).net
    scores = Validator.open(data, split, opened.config, World(), quiet=True)(net)
    line: str = scores.line()
    return line


if __name__ == "__main__":
    main()
