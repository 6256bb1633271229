"""Measure the memory bandwidth of the kernels of in-place ABN, as a fraction of that of a copy on the device.

    python benchmarks/bandwidth.py --device cuda [--json FILE] [NAME ...]

Each operator of a training step runs on maps of 1 x C x H x W, the sizes of a ResNet-50 body on a 1920 x 2304 image.
The bytes are those of inputs and outputs; torch's batch norm in training mode, the peer, must read its inputs twice,
which counts. The copy, of a gigabyte, takes turns with each operator. The smallest maps fit into the cache of a large
GPU, and their times are those of the launches.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from timing import options, processor, synchronize
from torch import Tensor

import seamseg.ops  # noqa: F401 (registers the operators)

SHAPES = [(64, 480, 576), (256, 480, 576), (512, 240, 288), (1024, 120, 144), (2048, 60, 72)]
OPS = torch.ops.seamseg


def operators(x: Tensor) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield name, bytes and call of each operator for maps like `x`."""
    channels, size = x.shape[1], x.numel() * x.element_size()
    dy, residual = torch.randn_like(x), torch.randn_like(x)
    mean, var = OPS.abn_statistics(x)
    scale, bias, slope = torch.rsqrt(var + 1e-5), torch.randn_like(mean), torch.full_like(mean, 1e-3)
    y = OPS.abn_transform(x, mean, scale, bias, None, 0, 0.01)
    weight = torch.ones(channels, device=x.device)
    running = torch.zeros(channels, device=x.device), torch.ones(channels, device=x.device)
    leaf = x.detach().requires_grad_()
    normed = torch.batch_norm(leaf, weight, bias, *running, True, 0.1, 1e-5, True)
    yield "abn_statistics", size, lambda: OPS.abn_statistics(x)
    yield "abn_transform", 2 * size, lambda: OPS.abn_transform(x, mean, scale, bias, None, 0, 0.01)
    yield "abn_transform, residual", 3 * size, lambda: OPS.abn_transform(x, mean, scale, bias, residual, 0, 0.01)
    yield "abn_backward_reduce", 2 * size, lambda: OPS.abn_backward_reduce(dy, y, None, bias, 0, 0.01)
    yield "abn_backward_input", 3 * size, lambda: OPS.abn_backward_input(dy, y, None, bias, scale, mean, slope, 0, 0.01)
    yield (
        *("torch batch_norm forward", 3 * size),
        lambda: torch.batch_norm(x, weight, bias, *running, True, 0.1, 1e-5, True),
    )
    yield "torch batch_norm backward", 5 * size, lambda: torch.autograd.grad(normed, leaf, dy, retain_graph=True)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the mean of a number of calls in a row, so that launches overlap with the kernels."""
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--small", action="store_true", help="small maps, whose figures mean nothing")
    arguments = parser.parse_args()
    device, shrink = arguments.device, 16 if arguments.small else 1
    big = torch.empty(2**30 // shrink**3, dtype=torch.uint8, device=device)
    other = torch.empty_like(big)
    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    found: dict[str, Any] = {"torch": torch.__version__, "device": name, "rounds": arguments.rounds, "rows": []}
    print(f"torch {torch.__version__}, {name}\n\n{'operator':<28}{'maps':<32}{'us':>9}{'GB/s':>8}{'of a copy':>11}")
    layouts = torch.contiguous_format, torch.channels_last
    for (channels, height, width), dtype, layout in product(SHAPES, (torch.bfloat16, torch.float32), layouts):
        x = torch.randn(1, channels, height // shrink, width // shrink, device=device).to(dtype)
        x = x.contiguous(memory_format=layout)
        maps = f"{'x'.join(map(str, x.shape[1:]))} {str(dtype)[6:]} {'NCHW' if x.is_contiguous() else 'NHWC'}"
        for operator, size, call in operators(x):
            if arguments.names and not any(word in f"{operator} {maps}" for word in arguments.names):
                continue
            call()
            times, copies = [], []
            for _ in range(arguments.rounds):
                times.append(seconds(call, 1 if arguments.small else 20))
                copies.append(seconds(lambda: other.copy_(big), 2))
            mine, copy = statistics.median(times), statistics.median(copies)
            part = size / mine / (2 * big.numel() / copy)
            found["rows"].append({"operator": operator, "maps": maps, "us": mine * 1e6, "of": part})
            print(f"{operator:<28}{maps:<32}{mine * 1e6:>9.1f}{size / mine / 1e9:>8.0f}{part:>11.2f}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
