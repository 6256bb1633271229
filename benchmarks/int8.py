"""Score a network and its ONNX files, in fp32, bf16 and int8.

    python benchmarks/int8.py [--model runs/demo --data runs/demo/toy_city/data] [--size 128x256] [--calibrate 64]
    python benchmarks/int8.py --model runs/demo --data runs/demo/toy_city/data --qat
    python benchmarks/int8.py --linear

By default the model and the data are those of `seamseg demo`, made in a temporary folder (`--train`, `--val` and
`--epochs` make a smaller one). Prints the scores on the split, and the median CPU seconds (all threads) per image,
as others may use the machine; the formats take turns. `--qat` also trains the network for int8, for an epoch.

`--linear` instead measures the linear layers of a box head, 1000 regions of 7 x 7 x 256 features: float, dynamic
quantisation, and static quantisation as in int8 files.
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
from functools import partial
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
    parser.add_argument("--size", metavar="HxW", help="input of the files (default: free)")
    parser.add_argument("--calibrate", type=int, default=64, metavar="N")
    parser.add_argument("--split", default="val")
    parser.add_argument("--rounds", type=int, default=5)
    for name, value in (("train", 560), ("val", 40), ("epochs", 8)):
        parser.add_argument(f"--{name}", type=int, default=value, help="of the toy city (default: %(default)s)")
    parser.add_argument("--qat", action="store_true", help="also train for int8, for an epoch, and score that file")
    parser.add_argument("--linear", action="store_true", help="measure dynamic quantisation of linear layers instead")
    parser.add_argument("--json", metavar="OUT", help="also write the numbers to this file")
    args = parser.parse_args()
    if (args.model is None) != (args.data is None):
        parser.error("give --model and --data together")
    if args.linear:
        print(json.dumps(linear_layers(args.rounds), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            train_toy_city(args, Path(folder, "demo"))
        table = compare(args, export(args, Path(folder)))
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
    from seamseg.deploy.export import export_model
    from seamseg.deploy.source import ExportOptions

    match = re.fullmatch(r"(\d+)x(\d+)", args.size or "")
    size = None if match is None else (int(match[1]), int(match[2]))
    files = {name: folder / f"{name.split()[1]}.{name.split()[0]}" for name in FILES}
    plain = ExportOptions(size, overrides=OVERRIDES)
    export_model(args.model, files["onnx fp32"], plain)
    for name in FILES[1:]:
        export_model(args.model, files[name], replace(plain, int8=args.data, calibrate=args.calibrate))
    if args.qat:
        trained = train_for_int8(args, folder / "qat")
        files["onnx qat"] = folder / "qat.onnx"
        export_model(trained, files["onnx qat"], plain)
    return files


def train_for_int8(args: argparse.Namespace, run: Path) -> Path:
    """Train the network for int8, for an epoch at a low rate; return the run folder."""
    from seamseg.training.run import TrainingOptions, run_training

    rate = ("optimizer.lr=1e-4", "scheduler.burn_in_steps=0", "scheduler.type=poly", 'scheduler.params={"gamma": 0.9}')
    changes = ("general.qat=yes", "scheduler.epochs=1", *rate)
    source = Path(args.model)
    start = (str(source / "model_best.pth.tar"),)
    run_training(TrainingOptions(source / "config.ini", args.data, run, pretrain=start, overrides=changes))
    return run


def linear_layers(rounds: int, rows: int = 1000, features: int = 12544, hidden: int = 1024) -> dict[str, Any]:
    """Return median CPU seconds and relative differences of two linear layers with leaky ReLU, in ONNX Runtime."""
    import numpy as np
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from seamseg.deploy.quantize import executed_operators, quantise

    rng = np.random.default_rng(0)
    model = _linear_model(rng, rows, features, hidden)
    x = np.maximum(rng.normal(size=(rows, features)), -0.01).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        plain, dynamic = Path(folder, "float.onnx"), Path(folder, "dynamic.onnx")
        onnx.save(model, plain)
        quantize_dynamic(plain, dynamic, weight_type=QuantType.QInt8, per_channel=True)
        models = {"float": model, "dynamic": onnx.load(dynamic), "static": quantise(model, [{"x": x}])}
    runs: dict[str, Callable[[], object]] = {}
    results = {}
    for name, made in models.items():
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        runs[name] = partial(session.run, None, {"x": x})
        results[name] = session.run(None, {"x": x})[0]
    seconds = {name: statistics.median(values) for name, values in times(runs, rounds).items()}
    deviation = results["float"].std()
    return {
        name: {
            "CPU seconds": round(seconds[name], 4),
            "speedup": round(seconds["float"] / seconds[name], 2),
            "difference / deviation": float(np.abs(results[name] - results["float"]).mean() / deviation),
            "operators": dict(executed_operators(made)),
        }
        for name, made in models.items()
    }


def _linear_model(rng: Any, rows: int, features: int, hidden: int) -> Any:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    sizes = (features, hidden, hidden)
    nodes, weights = [], []
    for i in range(2):
        weight = rng.normal(size=(sizes[i + 1], sizes[i])) * (2 / sizes[i]) ** 0.5
        for name, values in ((f"w{i}", weight), (f"b{i}", np.zeros(sizes[i + 1]))):
            weights.append(numpy_helper.from_array(values.astype("float32"), name))
        source = "x" if i == 0 else "h0"
        nodes.append(helper.make_node("Gemm", [source, f"w{i}", f"b{i}"], [f"g{i}"], f"fc{i}", transB=1))
        nodes.append(helper.make_node("LeakyRelu", [f"g{i}"], [f"h{i}"], f"act{i}", alpha=0.01))
    ends = (("x", features), ("h1", hidden))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, side]) for name, side in ends]
    graph = helper.make_graph(nodes, "box head", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def runner(model: Any, data: str, split: str, precision: str = "fp32") -> Callable[[], object]:
    """Return a function that predicts the first image of a split."""
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
    from seamseg.checkpoints.model_path import is_exported
    from seamseg.inference.options import InferenceOptions
    from seamseg.validation.evaluate import EvaluationOptions, evaluate_model

    inference = InferenceOptions() if is_exported(model) else InferenceOptions(overrides=OVERRIDES, precision=precision)
    options = EvaluationOptions(split, device="cpu", quiet=True, inference=inference)
    return evaluate_model(model, data, options).scores.line()


if __name__ == "__main__":
    main()
