"""Run the same network in every backend that works here, in turns, and recommend one."""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seamseg.checkpoints.model_path import is_exported
from seamseg.data.transforms import Normalise
from seamseg.deploy.export import check_target, open_source
from seamseg.deploy.network import export_net
from seamseg.deploy.source import ExportOptions
from seamseg.doctor.stages import random_predictor
from seamseg.formats.exported import ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.acceleration import Acceleration
from seamseg.inference.exported import ExportedNetwork
from seamseg.inference.network import TorchNetwork
from seamseg.inference.onnx_engines import OPENVINO, open_onnx
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import load_predictor
from seamseg.models.build import SegmentationNet
from seamseg.ops.fused import bf16_is_fast
from seamseg.utils.errors import InputError, SeamsegError, one_line
from seamseg.utils.progress import is_quiet

QUICK = ("fp32", "bf16")
SLOW = ("onnx", OPENVINO, "compiled", "pt2")
"""Backends for which the network is exported or compiled first, which takes a minute or more each."""
_ADVICE = {
    "fp32": "seamseg predict",
    "bf16": "seamseg predict --precision bf16",
    "compiled": "seamseg predict --compile, for many images: it compiles at each start",
    "onnx": "seamseg export MODEL out.onnx",
    OPENVINO: "seamseg export MODEL out.onnx, then seamseg predict out.onnx --device openvino",
    "pt2": "seamseg export MODEL out.pt2",
}
Run = Callable[[np.ndarray], object]
"""Runs the network on an image `H x W x 3` uint8 of the size of its input."""


@dataclass(frozen=True)
class Bench:
    """The network to measure.

    Attributes
    ----------
    net : folded, in fp32, on the device
    metadata : its classes
    device : device to measure on
    mean, std : mean and standard deviation of its input
    """

    net: Any
    metadata: Metadata
    device: torch.device
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @staticmethod
    def of(model: str | None, device: torch.device) -> Bench:
        """Open a trained model, or make a network with random weights."""
        if model is not None:
            source = open_source(model, ExportOptions())
            stated = source.metadata
            if stated.kind == "classification":
                raise InputError(f"{model}: a classifier has no forms to compare")
            return Bench(source.net.to(device), stated.metadata, device, stated.mean, stated.std)
        predictor = random_predictor(device, 512)
        net = predictor.network.net  # type: ignore[attr-defined]
        return Bench(net, predictor.metadata, device, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    def eager(self, net: SegmentationNet) -> Run:
        """Return the run of a network in torch."""
        network = TorchNetwork(net, Normalise(self.mean, self.std), self.device)
        return lambda image: network.run([image])


def parse(text: str) -> list[str]:
    """Return the backends of a list: names, exported files, or `all`.

    Raises
    ------
    InputError
        if one is unknown
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    names = [backend for name in names for backend in ((*QUICK, *SLOW) if name == "all" else (name,))]
    for name in names:
        if name not in (*QUICK, *SLOW) and not is_exported(name):
            known = ", ".join((*QUICK, *SLOW))
            raise InputError(f"`formats={name}`: choose from {known}, all, or give an exported file (.onnx, .pt2)")
    return list(dict.fromkeys(names))


def compare(bench: Bench, image: np.ndarray, rounds: int, backends: Sequence[str]) -> dict[str, float | str]:
    """Measure the backends of a network in turns.

    Parameters
    ----------
    bench : the network
    image : `H x W x 3` uint8, of the size of its input
    rounds : number of rounds, after a warm-up
    backends : names of backends, from :func:`parse`

    Returns
    -------
    for each backend the median in milliseconds, or why it was not measured
    """
    found: dict[str, float | str] = {}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        runs: dict[str, Run] = {}
        for name in backends:
            try:
                with _step(f"preparing {name}"):
                    made = _prepare(name, bench, image, Path(folder))
                    made(image)
                runs[name], times[name] = made, []
            except (SeamsegError, RuntimeError, ImportError) as error:
                found[name] = one_line(error)[:160]
        for number in range(rounds):
            with _step(f"round {number + 1} of {rounds}"):
                for name, run in runs.items():
                    start = time.perf_counter()
                    run(image)
                    _wait(bench.device)
                    times[name].append(time.perf_counter() - start)
    found.update({name: round(statistics.median(seconds) * 1e3, 2) for name, seconds in times.items()})
    return {name: found[name] for name in backends}


def recommendation(measured_ms: dict[str, float | str]) -> str:
    """Return a line that names the fastest backend of :func:`compare` and how to get it."""
    measured = {name: value for name, value in measured_ms.items() if isinstance(value, float)}
    if not measured:
        return "nothing was measured"
    best = min(measured, key=lambda name: measured[name])
    ratio = f", {measured['fp32'] / measured[best]:.2f}x of fp32" if "fp32" in measured and best != "fp32" else ""
    advice = _ADVICE.get(best, f"seamseg predict {best}")
    unmeasured = [name for name in (*QUICK, *SLOW) if name not in measured_ms]
    rest = f"; not compared: {', '.join(unmeasured)} (--formats all)" if unmeasured else ""
    exact = "" if best in ("fp32", "compiled", "onnx", OPENVINO, "pt2") else "; compare its results, too"
    return f"fastest here: {best}{ratio}: {advice}{exact}{rest}"


def _prepare(name: str, bench: Bench, image: np.ndarray, folder: Path) -> Run:
    if is_exported(name):
        opened = load_predictor(name, "auto", options=InferenceOptions())
        return lambda pixels: opened.network.run([pixels])
    if name == "fp32":
        return bench.eager(bench.net)
    if name == "bf16":
        if not bf16_is_fast(bench.device):
            raise SeamsegError(f"{bench.device} does not compute faster in bfloat16 than in float32")
        return bench.eager(copy.deepcopy(bench.net).to(torch.bfloat16))
    if name == "compiled":
        return bench.eager(Acceleration(compile=True).apply(bench.net, bench.device))
    return _exported(name, bench, image, folder)


def _exported(name: str, bench: Bench, image: np.ndarray, folder: Path) -> Run:
    """Export the network for the size of the image, and return its run."""
    path = folder / ("net.pt2" if name == "pt2" else "net.onnx")
    chosen = check_target(path, ExportOptions(force=True))
    size = int(image.shape[0]), int(image.shape[1])
    net = bench.net
    metadata = ExportedMetadata(net.kind, "", bench.metadata, size, mean=bench.mean, std=bench.std)
    if not path.exists():
        made = export_net(net, bench.mean, bench.std, standard_ops=chosen.standard_ops)
        chosen.write(made, path, metadata, size, 20)
    session = open_onnx(path, name) if name == OPENVINO else chosen.open(path)
    network = ExportedNetwork(session, name, metadata, None)
    return lambda pixels: network.run([pixels])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _step(text: str) -> Iterator[None]:
    """Print a line on stderr before the work."""
    if not is_quiet():
        print(f"{text} ...", file=sys.stderr, flush=True)
    yield
