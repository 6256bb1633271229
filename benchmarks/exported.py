"""Time a network in every engine on the CPU, in turns: eager, package (.pt2), ONNX Runtime, OpenVINO; fp32 to int8.

    python benchmarks/exported.py [fp32 bf16 pt2 onnx openvino onnx-int8 openvino-int8]
                                  [--config vistas_r50] [--size 512x768] [--rounds 7] [--json OUT]

Every side computes all outputs of an exported file, from the uint8 image to 100 detections and the class map, with the
same number of threads. Weights are random; a bias of the class layer makes every proposal a thing, so that there are
detections to calibrate int8 with. Seconds of the wall and of the CPU (all threads); the ratio is that of the wall to
the first side.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import DETECTIONS, random_predictor
from timing import in_turns, options, processor
from torch import nn

from seamseg.contrib.deploy.aoti import write_package
from seamseg.contrib.deploy.export import synthetic_image
from seamseg.contrib.deploy.network import example_inputs, export_net
from seamseg.contrib.deploy.onnx import write_onnx
from seamseg.contrib.deploy.quantize import quantise_file
from seamseg.contrib.exported.onnx_engines import open_onnx
from seamseg.contrib.exported.package import PackageSession
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.models.panoptic_inference import DetectionSelector

MEAN, STD = (0.41738699, 0.45732192, 0.46886091), (0.25685097, 0.26509955, 0.29067996)
SIDES = ("fp32", "bf16", "pt2", "onnx", "openvino", "onnx-int8", "openvino-int8")
Inputs = dict[str, np.ndarray]


class Network:
    """A network with random weights that finds things, and the files that it is exported to."""

    def __init__(self, config: str, size: tuple[int, int], folder: Path) -> None:
        predictor: Any = random_predictor(torch.device("cpu"), size[0], config=config)
        net = predictor.network.net
        nn.init.constant_(net.roi_head.roi_cls.bias[1:2], 8.0)
        roi = replace(net.options.selector.config, max_predictions=DETECTIONS)
        self.net, self.size, self.folder = net.with_options(selector=DetectionSelector(roi)), size, folder
        self.metadata = ExportedMetadata(net.kind, "", predictor.metadata, size, mean=MEAN, std=STD)
        made = example_inputs(export_net(self.net, MEAN, STD), size)
        self.inputs = {name: value.numpy() for name, value in made.items()}

    def run(self, side: str) -> Callable[[], object]:
        """Return the function of one side."""
        names = list(export_net(self.net, MEAN, STD).output_names)
        if side in ("fp32", "bf16"):
            return self._eager(self.net if side == "fp32" else copy.deepcopy(self.net).to(torch.bfloat16))
        if side == "pt2":
            path = self.folder / "net.pt2"
            write_package(export_net(self.net, MEAN, STD), path, self.metadata, self.size)
            return partial(PackageSession(path).run, names, self.inputs)
        engine, _, kind = side.partition("-")
        return partial(open_onnx(self._onnx(kind), "cpu" if engine == "onnx" else engine).run, names, self.inputs)

    def _onnx(self, kind: str) -> Path:
        plain, path = self.folder / "float.onnx", self.folder / f"{kind or 'float'}.onnx"
        if not plain.exists():
            write_onnx(export_net(self.net, MEAN, STD, standard_ops=True), plain, self.metadata, self.size)
        if not path.exists():
            quantise_file(plain, path, [self.metadata.inputs(synthetic_image(self.size)), self.inputs])
        return path

    def _eager(self, net: nn.Module) -> Callable[[], object]:
        module = torch.inference_mode()(export_net(net, MEAN, STD))
        return lambda: module(*(torch.from_numpy(value) for value in self.inputs.values()))


def main() -> None:
    """Export the network, then measure the requested sides."""
    parser = options(__doc__)
    parser.add_argument("--config", default="vistas_r50", help="experiment (default: %(default)s)")
    parser.add_argument("--size", default="512x768", help="HxW of the input (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in SIDES]:
        parser.error(f"{unknown[0]}: choose from {', '.join(SIDES)}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    # the engines have as many threads as torch
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    height, width = (int(side) for side in arguments.size.split("x"))
    with tempfile.TemporaryDirectory(prefix="seamseg-exported-") as folder:
        network = Network(arguments.config, (height, width), Path(folder))
        times = in_turns({side: network.run(side) for side in arguments.names or SIDES}, arguments.rounds)
    wall, cpu = ({side: statistics.median(t[clock]) for side, t in times.items()} for clock in ("wall", "cpu"))
    first = next(iter(times))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {processor()}")
    print(f"{arguments.config} at {arguments.size}\n\n{'side':<16}{'wall s':>9}{'CPU s':>9}{f'x {first}':>12}")
    for side in times:
        print(f"{side:<16}{wall[side]:>9.3f}{cpu[side]:>9.3f}{wall[first] / wall[side]:>12.2f}")
    if arguments.json:
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": processor()}
        facts |= {"rounds": arguments.rounds, "wall": wall, "CPU seconds": cpu}
        Path(arguments.json).write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
