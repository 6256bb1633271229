"""Measure the memory of a training step of a ResNet-50 body, and of predicting a huge image.

    python benchmarks/memory.py [--size 256 512] [--device cuda] [--image 12000x8400 --tiles auto 2048]

Kept tensors are counted by saved-tensor hooks, each storage once, without the parameters. The peak is that of the
allocator, above what was allocated before the step: on the CPU from torch's profiler, on a GPU from
`max_memory_allocated`. Peers: BatchNorm + LeakyReLU (in place), and in-place ABN without the sum of the residual block,
which is what the original network keeps.

`--image` predicts an image of WIDTHxHEIGHT, for each of --tiles in a fresh process, with a network of random weights
whose best 100 detections are kept whatever their scores. `host GiB` is VmHWM of the process, with torch, the weights
and the image; `GPU GiB` the peak of torch's allocator. By default the input is of the size of the configuration,
with --shortest-size larger, without a limit of the longest side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from seamseg.config import load_config
from seamseg.models.backbones.resnet import RESNETS, ResidualBlock, ResNet
from seamseg.ops.activation import activate_
from seamseg.ops.norm import InPlaceABN


class BatchNormLeakyReLU(nn.Sequential):
    """The peer, with the interface of the norms of residual blocks."""

    def __init__(self, channels: int, activation: str = "leaky_relu", activation_param: float = 0.01) -> None:
        layers: list[nn.Module] = [nn.BatchNorm2d(channels)]
        if activation == "leaky_relu":
            layers.append(nn.LeakyReLU(activation_param, inplace=True))
        super().__init__(*layers)
        self.activation, self.activation_param = activation, activation_param


class SumBlock(ResidualBlock):
    """The residual block with a separate sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer, see the base class."""
        shortcut = self.proj_bn(self.proj_conv(x)) if self.has_projection else x
        return activate_(self.convs(x) + shortcut, self.activation, self.activation_param)


def body(norm: Callable[..., nn.Module], separate_sum: bool, device: str) -> ResNet:
    """Make a ResNet-50 body for training."""
    torch.manual_seed(0)
    network = ResNet(RESNETS["resnet50"], norm).to(device)
    if separate_sum:
        for module in network.modules():
            if isinstance(module, ResidualBlock):
                module.__class__ = SumBlock
    return network


def kept_bytes(network: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that a forward pass leaves for the backward pass, which is run as well."""
    own = {_storage(p) for p in (*network.parameters(), *network.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[_storage(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = loss()
        total = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    kept.clear()
    result.backward()
    return total


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def loss(network: ResNet, images: Tensor) -> Tensor:
    """Mean of each map that a pyramid reads, in sum."""
    maps = network(images)
    return torch.stack([maps[f"mod{i}"].mean() for i in range(2, 6)]).sum()


def step(network: ResNet, images: Tensor) -> None:
    """Run the forward and backward pass, accumulating into existing gradients."""
    loss(network, images).backward()


def peak_bytes(function: Callable[[], None], device: str) -> int:
    """Return the peak allocation during a call, above that before it."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    current = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def training_rows(size: tuple[int, int], device: str) -> dict[str, dict[str, float]]:
    """Measure and print the step of each kind of norm."""
    images = torch.randn(1, 3, *size, device=device)
    kinds: dict[str, tuple[Callable[..., nn.Module], bool]] = {
        "BatchNorm + LeakyReLU": (BatchNormLeakyReLU, True),
        "in-place ABN, separate sum": (InPlaceABN, True),
        "in-place ABN": (InPlaceABN, False),
    }
    rows: dict[str, dict[str, float]] = {}
    print(f"ResNet-50 body, 1 x 3 x {size[0]} x {size[1]}, {device}\n")
    print(f"{'':<30}{'kept MiB':>10}{'of peer':>9}{'peak MiB':>10}{'of peer':>9}")
    for name, (norm, separate) in kinds.items():
        network = body(norm, separate, device)
        kept = kept_bytes(network, partial(loss, network, images)) / 2**20
        peak = peak_bytes(partial(step, network, images), device) / 2**20
        rows[name] = {"kept_mib": kept, "peak_mib": peak}
        first = rows["BatchNorm + LeakyReLU"]
        shares = kept / first["kept_mib"], peak / first["peak_mib"]
        print(f"{name:<30}{kept:>10.1f}{shares[0]:>9.2f}{peak:>10.1f}{shares[1]:>9.2f}")
    return rows


def image_row(image: str, tiles: str, shortest: int | None, config: str, device: str) -> dict[str, Any]:
    """Predict an image in this process; return peak memory in GiB, seconds and the number of runs of the network."""
    import numpy as np
    from networks import random_predictor
    from PIL import Image

    from seamseg.inference.images import input_size
    from seamseg.inference.tiling import Tiling
    from seamseg.models.panoptic_inference import DetectionSelector
    from seamseg.utils import process_settings

    process_settings.apply()
    width, height = map(int, image.split("x"))
    predictor = random_predictor(torch.device(device), config=config)
    network: Any = predictor.network
    roi = replace(network.net.options.selector.config, score_threshold=0.0, max_predictions=100)
    network.net = network.net.with_options(selector=DetectionSelector(roi))
    predictor.tiling = Tiling(int(tiles) if tiles.isdecimal() else tiles)
    if shortest is not None:
        predictor.input_size = input_size(load_config(config), shortest, max(width, height, shortest))
    blotches = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    pixels = Image.fromarray(blotches).resize((width, height), Image.Resampling.BICUBIC)
    start = time.perf_counter()
    with mock.patch.object(network, "run", wraps=network.run) as run:
        assert predictor.predict(pixels).size == (height, width)
    seconds = time.perf_counter() - start
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        "photo": image,
        "tiles": tiles,
        "peak": next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20,
        "gpu": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0,
        "seconds": seconds,
        "views": run.call_count,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=(256, 512), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--image", metavar="WIDTHxHEIGHT", help="also predict an image of this size")
    parser.add_argument("--tiles", nargs="+", default=["off", "1024"], help="auto, off or sides (default: off 1024)")
    parser.add_argument("--shortest-size", type=int, help="shortest side of the network's input for --image")
    parser.add_argument("--config", default="vistas_r50", help="network of --image (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "device": arguments.device}
    found["rows"] = training_rows(tuple(arguments.size), arguments.device)
    given = arguments.image, arguments.shortest_size, arguments.config, arguments.device
    for tiles in arguments.tiles if arguments.image else ():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            row = fresh.submit(image_row, given[0], tiles, *given[1:]).result()
        found.setdefault("images", []).append(row)
        print(f"{row['photo']}, tiles {tiles}: {row['peak']:.1f} host GiB, {row['gpu']:.1f} GPU GiB, ", end="")
        print(f"{row['seconds']:.1f} s, {row['views']} runs of the network", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
