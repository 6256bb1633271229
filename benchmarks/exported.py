"""Time a network in every engine on the CPU, in turns: eager, package (.pt2), ONNX Runtime, OpenVINO; fp32 to int8.

    python benchmarks/exported.py [fp32 direct bf16 plain separated pt2 onnx openvino onnx-int8 openvino-int8]
                                  [--config vistas_r50] [--size 512x768] [--detections 100] [--rounds 7] [--json OUT]

Every side computes all outputs of an exported file, from the uint8 image to the detections and the class map, with the
same number of threads; the mask branch runs on as many rows as --detections. `direct` is the network without Winograd's
algorithm; `plain` the algorithm of the original, written plainly (benchmarks/plain.py); `separated` the same, but for
its large average pool, which goes along one axis after the other. Weights are random; a bias of the class layer makes
every proposal a thing, so that there are detections to calibrate int8 with. Seconds of the wall and of the CPU (all
threads); the ratio is that of the wall to the first side.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain import plain_network
from stages import random_predictor
from timing import options, processor
from torch import nn

from seamseg.data.transforms import Normalise
from seamseg.deploy.aoti import write_package
from seamseg.deploy.network import example_inputs, export_net
from seamseg.deploy.onnx import write_onnx
from seamseg.deploy.quantize import quantise_file
from seamseg.formats.exported import ExportedMetadata
from seamseg.inference.onnx_engines import open_onnx
from seamseg.inference.package import PackageSession
from seamseg.models.heads.detections import DetectionSelector
from seamseg.models.heads.roi import ROIHead
from seamseg.models.panoptic import PanopticNet
from seamseg.ops.fused import FusedConv2d
from seamseg.ops.winograd import WinogradConv2d
from seamseg.structures import PackedSequence
from seamseg.utils.synthetic_image import synthetic_image

MEAN, STD = (0.41738699, 0.45732192, 0.46886091), (0.25685097, 0.26509955, 0.29067996)
SIDES = (
    "fp32",
    "direct",
    "bf16",
    "plain",
    "separated",
    "pt2",
    "onnx",
    "openvino",
    "onnx-int8",
    "openvino-int8",
)
Inputs = dict[str, np.ndarray]
Run = Callable[[Inputs], object]


class Network:
    """A network with random weights that finds things, and the files that it is exported to."""

    def __init__(self, arguments: Any, folder: Path) -> None:
        height, width = (int(side) for side in arguments.size.split("x"))
        self.size = height, width
        self.config, self.detections = arguments.config, arguments.detections
        self.net, predictor = self._network(folded=True)
        net, self.folder, self.threads = self.net, folder, torch.get_num_threads()
        self.metadata = ExportedMetadata(net.kind, "", predictor.metadata, self.size, mean=MEAN, std=STD)

    def _network(self, folded: bool) -> tuple[Any, Any]:
        """Return the network, always with the same weights, and its predictor."""
        predictor = random_predictor(torch.device("cpu"), self.size[0], config=self.config, folded=folded)
        net = predictor.network.net  # type: ignore[attr-defined]
        if isinstance(net, PanopticNet):
            assert isinstance(net.roi_head, ROIHead)
            nn.init.constant_(net.roi_head.roi_cls.bias[1:2], 8.0)
            roi = replace(net.options.selector.config, max_predictions=self.detections)
            net = net.with_options(selector=DetectionSelector(roi))
        return net, predictor

    def run(self, side: str) -> Run:
        """Return the function of one side."""
        if side == "fp32":
            return self._eager(self.net)
        if side == "direct":
            return self._eager(_without_winograd(self.net))
        if side == "bf16":
            return self._eager(copy.deepcopy(self.net).to(torch.bfloat16))
        if side in ("plain", "separated"):
            return self._plain(plain_network(self._network(folded=False)[0], side == "separated"))
        if side == "pt2":
            path = self.folder / "net.pt2"
            write_package(export_net(self.net, MEAN, STD), path, self.metadata, self.size)
            names, package = list(self.metadata.outputs), PackageSession(path)
            return lambda inputs: package.run(names, inputs)
        engine, _, kind = side.partition("-")
        path = self._onnx(kind)
        session = open_onnx(path, "cpu" if engine == "onnx" else engine)
        return lambda inputs: session.run(list(self.metadata.outputs), inputs)

    def _onnx(self, kind: str) -> Path:
        plain, path = self.folder / "float.onnx", self.folder / f"{kind or 'float'}.onnx"
        if not plain.exists():
            write_onnx(export_net(self.net, MEAN, STD, standard_ops=True), plain, self.metadata, self.size)
        if not path.exists():
            quantise_file(plain, path, self.samples())
        return path

    def samples(self) -> list[Inputs]:
        """Return the images to calibrate int8 with."""
        return [self.metadata.inputs(synthetic_image(self.size)), self.noise()]

    def noise(self) -> Inputs:
        """Return the image that is timed."""
        made = example_inputs(export_net(self.net, MEAN, STD), self.size)
        return {name: value.numpy() for name, value in made.items()}

    def _plain(self, net: PanopticNet) -> Run:
        normalise = Normalise(MEAN, STD)
        return lambda inputs: net.predict(PackedSequence([normalise(torch.from_numpy(inputs["image"][0]))]))

    def _eager(self, net: nn.Module) -> Run:
        module = export_net(net, MEAN, STD)
        assert module.output_names == self.metadata.outputs

        def run(inputs: Inputs) -> object:
            with torch.inference_mode():
                return module(*(torch.from_numpy(value) for value in inputs.values()))

        return run


def _without_winograd(net: nn.Module) -> nn.Module:
    """Return a copy of a network whose 3x3 convolutions are direct sums."""
    net = copy.deepcopy(net)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, WinogradConv2d):
                plain = FusedConv2d(child.weight, child.bias, child, child.activation, child.activation_param)
                setattr(parent, name, plain)
    return net


def main() -> None:
    """Export the network, then measure the requested sides."""
    parser = options(__doc__)
    parser.add_argument("--config", default="vistas_r50", help="experiment (default: %(default)s)")
    parser.add_argument("--size", default="512x768", help="HxW of the input (default: %(default)s)")
    parser.add_argument("--detections", type=int, default=100, help="rows of the outputs (default: %(default)s)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in SIDES]
    if unknown:
        parser.error(f"{unknown[0]}: choose from {', '.join(SIDES)}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    # the engines have as many threads as torch
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    with tempfile.TemporaryDirectory(prefix="seamseg-exported-") as folder:
        network = Network(arguments, Path(folder))
        runs = {side: network.run(side) for side in arguments.names or SIDES}
        wall, cpu = times(runs, network.noise(), arguments.rounds)
    first = next(iter(runs))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {processor()}")
    print(f"{arguments.config} at {arguments.size}, {arguments.detections} detections\n")
    print(f"{'side':<16}{'wall s':>9}{'CPU s':>9}{f'x {first}':>12}")
    for side in runs:
        print(f"{side:<16}{wall[side]:>9.3f}{cpu[side]:>9.3f}{wall[first] / wall[side]:>12.2f}")
    if arguments.json:
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": processor()}
        facts |= {"load": os.getloadavg()[0], "rounds": arguments.rounds, "wall": wall}
        case = {"config": arguments.config, "size": arguments.size, "detections": arguments.detections}
        Path(arguments.json).write_text(json.dumps({**facts, **case, "CPU seconds": cpu}, indent=1))


def times(runs: dict[str, Run], inputs: Inputs, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median seconds of the wall and of the CPU of each run, in turns, after one to warm up."""
    wall: dict[str, list[float]] = {side: [] for side in runs}
    cpu: dict[str, list[float]] = {side: [] for side in runs}
    for number in range(rounds + 1):
        for side, run in runs.items():
            start, used = time.perf_counter(), time.process_time()
            run(inputs)
            if number:
                wall[side].append(time.perf_counter() - start)
                cpu[side].append(time.process_time() - used)
    medians = ({side: statistics.median(values) for side, values in found.items()} for found in (wall, cpu))
    first, second = medians
    return first, second


if __name__ == "__main__":
    main()
