"""Score a network and its ONNX files, in fp32, bf16 and int8.

    python benchmarks/int8.py [--model runs/demo --data runs/demo/toy_city/data] [--calibrate 64]

By default the model and the data are those of `seamseg demo`, made in a temporary folder (`--train`, `--val` and
`--epochs` make a smaller one). Prints the scores on the split `val`, and the median CPU seconds (all threads) per
image, as others may use the machine; the formats take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from timing import in_turns

OVERRIDES = ("general.eval_coco=yes",)
"""The scores include AP."""


def main() -> None:
    """Export, score, time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="run folder")
    parser.add_argument("--data", help="data set folder of --model")
    parser.add_argument("--calibrate", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    for name, value in (("train", 560), ("val", 40), ("epochs", 8)):
        parser.add_argument(f"--{name}", type=int, default=value, help="of the toy city (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="also write the numbers to this file")
    args = parser.parse_args()
    if (args.model is None) != (args.data is None):
        parser.error("give --model and --data together")
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            train_toy_city(args, Path(folder, "demo"))
        models = {"fp32": (args.model, "fp32"), "bf16": (args.model, "bf16")}
        models |= {name: (path, "fp32") for name, path in export(args, Path(folder)).items()}
        times = in_turns({name: runner(*model, args.data) for name, model in models.items()}, args.rounds)
        seconds = {name: statistics.median(found["cpu"]) for name, found in times.items()}
        table = {
            name: {
                "CPU seconds": seconds[name],
                "speedup": seconds["fp32"] / seconds[name],
                "scores": score(model, precision, args.data),
            }
            for name, (model, precision) in models.items()
        }
    for name, row in table.items():
        print(f"{name:10} {row['CPU seconds']:.3f} CPU s per image, {row['speedup']:.2f}x of fp32: {row['scores']}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def train_toy_city(args: argparse.Namespace, run: Path) -> None:
    """Make the toy city, train the network of the demo, and set `args.model` and `args.data`."""
    from seamseg.demo import DemoOptions, run_demo

    overrides: tuple[str, ...] = (
        f"scheduler.epochs={args.epochs}",
        f"dataloader.train_batch_size={min(8, args.train)}",
    )
    if args.train * args.epochs < 1000:
        # masks are calibrated on detections, which a few large steps do not lead to
        overrides += ("optimizer.lr=0.001",)
    run_demo(DemoOptions(run, args.train, args.val, overrides=overrides, device="cpu"))
    args.model, args.data = run, run / "toy_city" / "data"


def export(args: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Return the exported files by format."""
    from seamseg.contrib.deploy.export import export_model
    from seamseg.contrib.deploy.options import ExportOptions

    files = {"onnx fp32": folder / "fp32.onnx", "onnx int8": folder / "int8.onnx"}
    plain = ExportOptions(args.model, files["onnx fp32"], overrides=OVERRIDES)
    export_model(plain)
    export_model(replace(plain, out=files["onnx int8"], int8=args.data, calibrate=args.calibrate))
    return files


def runner(model: Any, precision: str, data: str) -> Callable[[], object]:
    """Return a function that predicts the first image of the split."""
    import seamseg
    from seamseg.maps.folder import DatasetFolder

    folder = DatasetFolder(data)
    photo = folder.image_path(folder.split("val")[0].id)
    predictor = seamseg.load(model, "cpu", precision=precision)
    return lambda: predictor.predict(photo)


def score(model: Any, precision: str, data: str) -> str:
    """Return the line of the scores of a model."""
    from seamseg.checkpoints.model_path import library_of
    from seamseg.validation.evaluate import evaluate_model
    from seamseg.validation.options import EvaluationOptions

    inference: dict[str, Any] = (
        {} if library_of(model) == "exported" else {"overrides": OVERRIDES, "precision": precision}
    )
    options = EvaluationOptions(model, data, "cpu", split="val", quiet=True, **inference)
    return evaluate_model(options).line()


if __name__ == "__main__":
    main()
