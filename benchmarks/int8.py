"""Score a model in every format it can be exported to: the network in fp32 and bf16, ONNX in fp32 and int8.

    python benchmarks/int8.py [--model runs/demo --data runs/demo/toy_city/data] [--size 256x256] [--calibrate 64]

By default the model and the data are those of `seamseg demo`, made in a temporary folder (`--train`, `--val` and
`--epochs` make a smaller one). Prints the scores on the split, and the median CPU seconds (all threads) of a picture,
as others may use the machine; the formats take turns.
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--model", help="run folder, zip or snapshot")
    parser.add_argument("--data", help="data set folder of --model")
    parser.add_argument("--size", metavar="HxW", help="input of the files (default: that of seamseg export)")
    parser.add_argument("--calibrate", type=int, default=64, metavar="N")
    parser.add_argument("--split", default="val")
    parser.add_argument("--rounds", type=int, default=5)
    for name, value in (("train", 300), ("val", 40), ("epochs", 12)):
        parser.add_argument(f"--{name}", type=int, default=value, help="of the toy city (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="also write the numbers to this file")
    args = parser.parse_args()
    if (args.model is None) != (args.data is None):
        parser.error("give --model and --data together")
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            train_toy_city(args, Path(folder, "demo"))
        table = compare(args, export(args, Path(folder)))
    for name, row in table.items():
        print(f"{name:10} {row['CPU seconds']:.3f} CPU s a picture, {row['speedup']:.2f}x of fp32: {row['scores']}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def train_toy_city(args: argparse.Namespace, run: Path) -> None:
    """Make the toy city, train the network of the demo, and set `args.model` and `args.data`."""
    from seamseg.demo import DemoOptions, run_demo

    overrides = (f"scheduler.epochs={args.epochs}", f"dataloader.train_batch_size={min(4, args.train)}")
    run_demo(DemoOptions(run, args.train, args.val, overrides=overrides, device="cpu"))
    args.model, args.data = run, run / "toy_city" / "data"


def compare(args: argparse.Namespace, files: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return CPU seconds and scores of each format."""
    runs = {name: runner(args.model, args.data, args.split, name) for name in NETWORKS}
    runs |= {name: runner(path, args.data, args.split) for name, path in files.items()}
    seconds = {name: statistics.median(values) for name, values in times(runs, args.rounds).items()}
    models: dict[str, tuple[Any, str]] = {name: (args.model, name) for name in NETWORKS}
    models |= {name: (path, "fp32") for name, path in files.items()}
    return {
        name: {
            "CPU seconds": seconds[name],
            "speedup": seconds[NETWORKS[0]] / seconds[name],
            "scores": score(model, args.data, args.split, precision),
        }
        for name, (model, precision) in models.items()
    }


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
