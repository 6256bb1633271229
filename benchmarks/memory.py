"""Measure the memory of a training step of a ResNet-50 body.

    python benchmarks/memory.py [--size 256 512] [--device cuda]

Kept tensors are counted by saved-tensor hooks, each storage once, without the parameters. The peak is that of the
allocator, above what was allocated before the step: on the CPU from torch's profiler, on a GPU from
`max_memory_allocated`. Peers: BatchNorm + LeakyReLU (in place), and in-place ABN without the sum of the residual block,
which is what the original network keeps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.models.backbones.resnet import RESNETS, ResidualBlock, ResNet
from seamseg.ops.fused import activate
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
        return activate(self.convs(x) + shortcut, self.activation, self.activation_param, inplace=True)


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
    own = {p.untyped_storage()._cdata for p in (*network.parameters(), *network.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = loss()
        total = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    kept.clear()
    result.backward()
    return total


def loss(network: ResNet, images: Tensor) -> Tensor:
    """Mean of each map that a pyramid reads, in sum."""
    maps = network(images)
    return torch.stack([maps[f"mod{i}"].mean() for i in range(2, 6)]).sum()


def peak_bytes(function: Callable[[], object], device: str) -> int:
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
        peak = peak_bytes(lambda: loss(network, images).backward(), device) / 2**20  # noqa: B023 (runs at once)
        rows[name] = {"kept_mib": kept, "peak_mib": peak}
        first = rows["BatchNorm + LeakyReLU"]
        shares = kept / first["kept_mib"], peak / first["peak_mib"]
        print(f"{name:<30}{kept:>10.1f}{shares[0]:>9.2f}{peak:>10.1f}{shares[1]:>9.2f}")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=(256, 512), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "device": arguments.device}
    found["rows"] = training_rows(tuple(arguments.size), arguments.device)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
