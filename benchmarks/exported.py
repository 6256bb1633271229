"""Time one network in eager mode and as an ONNX file in ONNX Runtime and OpenVINO, in turns, on the CPU.

    python benchmarks/exported.py [--config vistas_r50] [--size 512x768] [--rounds 7] [onnxruntime openvino]

Each side computes all outputs of the file, from the uint8 image to the detections and the class map, with the same
number of threads. Weights are random, so that there are no detections. The difference is the fraction of pixels with
another class.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Case, options, report

from seamseg.deploy.network import ExportNet, example_inputs, export_net, output_names
from seamseg.deploy.onnx import write_onnx
from seamseg.formats.exported import ExportedMetadata
from seamseg.predict.profiling import random_predictor

MEAN, STD = (0.41738699, 0.45732192, 0.46886091), (0.25685097, 0.26509955, 0.29067996)


def main() -> None:
    """Export the network, then measure the requested engines."""
    parser = options(__doc__)
    parser.add_argument("--config", default="vistas_r50", help="experiment (default: %(default)s)")
    parser.add_argument("--size", default="512x768", help="HxW of the input (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    height, width = (int(side) for side in arguments.size.split("x"))
    predictor = random_predictor(torch.device("cpu"), height, config=arguments.config)
    net = predictor.network.net  # type: ignore[attr-defined]
    eager = export_net(net, MEAN, STD)
    inputs = example_inputs(eager, (height, width))
    with tempfile.TemporaryDirectory(prefix="seamseg-exported-") as folder:
        path = Path(folder, "network.onnx")
        metadata = ExportedMetadata(net.kind, "", predictor.metadata, (height, width))
        write_onnx(export_net(net, MEAN, STD, standard_ops=True), path, metadata, (height, width))
        arrays = {name: value.numpy() for name, value in inputs.items()}
        compared = next(name for name in ("classmap", "scores") if name in output_names(eager))
        engines: dict[str, Callable[[Path], Callable[[dict[str, Any]], Any]]] = {
            "onnxruntime": partial(_onnxruntime, compared),
            "openvino": partial(_openvino, compared),
        }

        def case(name: str) -> Case:
            run = engines[name](path)
            return Case(
                f"{arguments.config} {arguments.size}",
                name,
                lambda: _eager(eager, inputs, compared),
                lambda: run(arrays),
            )

        report([(name, partial(case, name)) for name in engines], arguments)


@torch.inference_mode()
def _eager(net: ExportNet, inputs: dict[str, torch.Tensor], output: str) -> torch.Tensor:
    return dict(zip(output_names(net), net(*inputs.values())))[output]


def _onnxruntime(output: str, path: Path) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        found: np.ndarray = dict(zip(names, session.run(names, inputs)))[output]
        return found

    return run


def _openvino(output: str, path: Path) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.compile_model(str(path), "CPU", settings)

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        found: np.ndarray = np.array(compiled(inputs)[compiled.output(output)])
        return found

    return run


if __name__ == "__main__":
    main()
