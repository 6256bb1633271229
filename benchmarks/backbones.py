"""Compare panoptic networks on each body with in-place ABN and with batch norm: kept memory, time of a training step.

    python benchmarks/backbones.py [NETWORK ...] [--body-size 512 1024] [--size 128 256] [--rounds 3] [--json FILE]

The peer is the same network written plainly: `to_batchnorm` gives BatchNorm and LeakyReLU (in place), the poolings are
those of torch. Both have the same weights. The body is measured alone, without computing it, and in a whole training
step: forward and backward pass of the panoptic network with its losses, without an update of the weights. Kept tensors
are counted by saved-tensor hooks, each storage once, without the parameters (benchmarks/memory.py). The sides take
turns; times are medians: of CPU time with one thread (OMP_NUM_THREADS=1), which other processes disturb less, else of
wall time. Regions are sampled in proportion to the size of the image: 512 for 512x1024.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from abn import BatchNormLeakyReLU
from memory import kept_bytes
from plain import torch_poolings
from street import CITYSCAPES, smooth, street
from timing import processor
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from seamseg.config import Config, load_config
from seamseg.inplace_abn import to_batchnorm
from seamseg.models.backbones import BACKBONES, build_backbone
from seamseg.models.build import build_training_module
from seamseg.ops.norm import InPlaceABN
from seamseg.structures import Batch

CONFIG = Path(__file__).parents[1] / "configs" / "cityscapes_r50.ini"
STRIDES = (4, 8, 16, 32)


def configuration(name: str, size: tuple[int, int]) -> Config:
    """Return the configuration of a panoptic network on a body; the pyramid reads the last map of each stride."""
    with torch.device("meta"):
        body = build_backbone(name, InPlaceABN)
    inputs = {stride: stage for stage, stride in body.out_strides.items() if stride in STRIDES}
    config = load_config(CONFIG)
    return replace(
        config,
        body=replace(config.body, body=name, num_frozen=0, out_channels=body.out_channels),
        fpn=replace(config.fpn, inputs=[inputs[stride] for stride in STRIDES]),
        roi=replace(config.roi, num_samples=max(size[0] * size[1] // 1024, 16)),
    )


def body_mib(name: str, size: tuple[int, int]) -> dict[str, float]:
    """MiB that both sides of a body keep; nothing is computed."""
    row = {}
    with FakeTensorMode():
        for side, norm in (("in-place", InPlaceABN), ("plain", BatchNormLeakyReLU)):
            body = build_backbone(name, norm)
            if side == "plain":
                torch_poolings(body)
            row[f"body {side} MiB"] = kept_bytes(body, partial(_total, body, torch.randn(1, 3, *size))) / 2**20
    return row


def _total(body: nn.Module, images: Tensor) -> Tensor:
    return torch.stack([y.mean() for y in body(images).values()]).sum()


def step(name: str, size: tuple[int, int], rounds: int) -> dict[str, float]:
    """MiB and seconds of a training step of both sides."""
    torch.manual_seed(0)
    module = build_training_module(configuration(name, size), CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    modules = {"in-place": module, "plain": torch_poolings(to_batchnorm(module))}
    batch = street([smooth(*size, (8, 16))], CITYSCAPES)
    row: dict[str, float] = {}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {side: [] for side in modules}
    for turn in range(rounds + 1):
        for side, made in modules.items():
            torch.manual_seed(1)
            if turn == 0:
                row[f"step {side} MiB"] = kept_bytes(made, partial(_loss, made, batch)) / 2**20
            else:
                start = clock()
                _loss(made, batch).backward()
                times[side].append(clock() - start)
            made.zero_grad(set_to_none=True)
    return row | {f"step {side} s": statistics.median(values) for side, values in times.items() if values}


def _loss(module: nn.Module, batch: Batch) -> Tensor:
    return torch.stack(list(module(batch).means.values())).sum()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"networks: {', '.join(BACKBONES)} (default: all)"
    )
    parser.add_argument("--body-size", type=int, nargs=2, default=(512, 1024), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument(
        "--size", type=int, nargs=2, default=(128, 256), metavar=("HEIGHT", "WIDTH"), help="image size of a step"
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed steps of each side (default: %(default)s)")
    parser.add_argument("--body-only", action="store_true", help="memory of the bodies only: nothing is computed")
    parser.add_argument("--json", help="also write the numbers to this file; other networks in it stay")
    arguments = parser.parse_args()
    sizes = tuple(arguments.body_size), tuple(arguments.size)
    file = Path(arguments.json) if arguments.json else None
    rows = json.loads(file.read_text())["rows"] if file is not None and file.exists() else {}
    threads = torch.get_num_threads()
    print(f"body {sizes[0]}, step {sizes[1]}, torch {torch.__version__}, {threads} threads, {processor()}")
    print("MiB kept by the body and by a step, and seconds of a step; beside it those of the plain network")
    print(" " * 24 + "".join(f"{what:>8}{'plain':>8}{'ratio':>7}" for what in ("body", "step", "s")))
    for name in arguments.networks or BACKBONES:
        row = body_mib(name, sizes[0])
        if not arguments.body_only:
            row |= step(name, sizes[1], arguments.rounds)
        rows.setdefault(name, {}).update(row)
        line = f"{name:<24}"
        for what, digits in (("body {} MiB", 1), ("step {} MiB", 1), ("step {} s", 2)):
            ours, theirs = (row.get(what.format(side), float("nan")) for side in ("in-place", "plain"))
            line += f"{ours:>8.{digits}f}{theirs:>8.{digits}f}{ours / theirs:>7.3f}"
        print(line, flush=True)
        if file is not None:
            facts = {"torch": torch.__version__, "threads": threads, "cpu": processor()}
            facts |= {"body_size": sizes[0], "step_size": sizes[1], "rounds": arguments.rounds, "rows": rows}
            file.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
