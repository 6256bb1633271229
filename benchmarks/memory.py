"""Measure the memory that a ResNet-50 body keeps for the backward pass, and the peak of a training step.

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
from typing import Any
from unittest import mock

import torch
from abn import BatchNormLeakyReLU
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seamseg.models.backbones.residual import ResidualBlock
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.abn_recompute import _Recomputed
from seamseg.ops.activation import activate_
from seamseg.ops.norm import InPlaceABN


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
    parts: list[tuple[_Recomputed, Any]] = []
    pack_of_part = _Recomputed.pack

    def pack(tensor: Tensor) -> Tensor:
        kept[_storage(tensor)] = tensor
        return tensor

    def pack_inside(part: _Recomputed, tensor: Tensor) -> Any:
        parts.append((part, pack_of_part(part, tensor)))
        return parts[-1][1]

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with mock.patch.object(_Recomputed, "pack", pack_inside), hooks:
        result = loss()
        # of nested hooks only the inner ones run: those of layers whose output is computed again
        for part, saved in parts:
            inputs = [cell.cell_contents for cell in part._make_input.__closure__ or ()]
            for value in tree_leaves([inputs, getattr(saved, "tensor", saved)]):
                if isinstance(value, Tensor):
                    pack(value)
        total = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    kept.clear()
    parts.clear()
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
    maps = network(images)
    torch.autograd.backward([maps[f"mod{i}"].mean() for i in range(2, 6)])


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=(256, 512), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    images = torch.randn(1, 3, *arguments.size, device=arguments.device)
    kinds: dict[str, tuple[Callable[..., nn.Module], bool]] = {
        "BatchNorm + LeakyReLU": (BatchNormLeakyReLU, True),
        "in-place ABN, separate sum": (InPlaceABN, True),
        "in-place ABN": (InPlaceABN, False),
    }
    rows: list[dict[str, float]] = []
    print(f"ResNet-50 body, 1 x 3 x {arguments.size[0]} x {arguments.size[1]}, {arguments.device}\n")
    print(f"{'':<30}{'kept MiB':>10}{'of peer':>9}{'peak MiB':>10}{'of peer':>9}")
    for name, (norm, separate) in kinds.items():
        network = body(norm, separate, arguments.device)
        kept = kept_bytes(network, partial(loss, network, images)) / 2**20
        peak = peak_bytes(partial(step, network, images), arguments.device) / 2**20
        rows.append({"kept_mib": kept, "peak_mib": peak})
        shares = kept / rows[0]["kept_mib"], peak / rows[0]["peak_mib"]
        print(f"{name:<30}{kept:>10.1f}{shares[0]:>9.2f}{peak:>10.1f}{shares[1]:>9.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"torch": torch.__version__, "device": arguments.device, "rows": dict(zip(kinds, rows))}, file, indent=1
            )


if __name__ == "__main__":
    main()
