"""Compare a plain training step of one image with one with all optimizations.

    python benchmarks/train_step.py --device cuda --json results/train_step_gpu.json
    python benchmarks/train_step.py --device cpu --size 256x512 --rounds 1

plain: fp32 (convolutions in TF32, torch's default on a GPU), contiguous, eager. fast: bf16, channels last, compiled,
a fixed number of samples. eager: fast without the compiler. graphed: eager with CUDA graphs (on the CPU: without).
checkpointed: body and pyramid computed a second time instead of kept. winograd, direct: fp32, channels last, on a CPU
with and without Winograd's algorithm. positives: winograd, with masks of positive samples only. Each side takes turns
with plain; medians are printed, on a CPU of its seconds. A side that fails does not stop the others; the exit code is
then 1.

A step is the upload of its batch, forward, backward and an update by SGD with momentum. All sides get the batch in
page-locked memory, as a loader gives it; plain uploads it when the step begins, the others as the trainer does, on a
stream of its own during the step before. The peak is that of the allocator in one more step, above what stands before
it: weights, momenta and the batches that wait (benchmarks/memory.py), and what CUDA graphs reserve. FLOPs are those of
matrix products and convolutions of the plain step, counted by torch, so that work done twice does not make a side look
faster; the ceiling is a large product of bf16 (on the CPU: float32) matrices in the same run. Weights are random, the
image is noise with rectangles on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from memory import peak_bytes
from street import VISTAS, noise, street
from timing import profiled, synchronize
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from seamseg.config import Config, load_config
from seamseg.models.build import build_training_module
from seamseg.structures import Batch
from seamseg.training.graphs import use_cuda_graphs
from seamseg.training.logging.reporter import TextLog
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import TrainingBatch, prefetched
from seamseg.training.run import compile_network
from seamseg.training.step import Stepper, StepResult
from seamseg.utils import process
from seamseg.utils.distributed import World

CONFIGS = Path(__file__).parents[1] / "configs"
SIDES = {
    "plain": ("precision=fp32", "channels_last=no", "winograd=no"),
    "direct": ("precision=fp32", "winograd=no"),
    "winograd": ("precision=fp32", "winograd=yes"),
    "positives": ("precision=fp32", "winograd=yes", "roi.mask_positives_only=yes"),
    "fast": ("precision=bf16", "channels_last=yes", "compile=yes", "roi.fixed_samples=yes"),
}
SIDES["eager"] = tuple(option for option in SIDES["fast"] if option != "compile=yes")
SIDES["graphed"] = (*SIDES["eager"], "cuda_graphs=yes")
SIDES["eager_checkpointed"] = (*SIDES["eager"], "checkpoint_body=yes")
SIDES["checkpointed"] = (*SIDES["fast"], "checkpoint_body=yes")


@dataclass
class Side:
    """One way to train, and what was measured of it."""

    name: str
    module: Any
    step: Callable[[], StepResult]
    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    compiler: dict[str, int] = field(default_factory=dict)


def config_of(name: str, experiment: str, *more: str) -> Config:
    """Return the configuration of a side, with more settings."""
    overrides = [o if "." in o else f"general.{o}" for o in (*SIDES[name], *more)]
    return load_config(CONFIGS / f"{experiment}.ini", overrides=overrides)


def make(name: str, batch: Batch, world: World, experiment: str) -> Side:
    """Make a side with its own network."""
    config = config_of(name, experiment)
    torch.manual_seed(0)
    module = build_training_module(config, VISTAS.num_stuff, VISTAS.num_thing).to(world.device).train()
    return side_of(name, module, config, batch, world)


def side_of(name: str, module: Any, config: Config, batch: Batch, world: World) -> Side:
    """Make a side with a network."""
    if config.general.compile:
        compile_network(module.net, world, TextLog(None).warning)
    if config.general.cuda_graphs:
        use_cuda_graphs(module, world.device, TextLog(None).warning)
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, world)
    rates = [1e-4 for _ in optimizer.param_groups]
    batches = itertools.repeat(batch.pin_memory() if world.device.type == "cuda" else batch)
    plain = (loaded.to(world.device, non_blocking=True) for loaded in batches)
    ahead = (uploaded.batch for uploaded in prefetched(batches, world.device))
    coming: Iterator[TrainingBatch] = plain if name == "plain" else ahead

    def step() -> StepResult:
        result = stepper([next(coming)], rates)
        # the sides share the memory: none keeps more than weights and momenta while another runs
        optimizer.zero_grad(set_to_none=True)
        return result

    return Side(name, module, step)


def flops_of(side: Side) -> float:
    """Count the FLOPs of a step."""
    with FlopCounterMode(display=False) as counter:
        side.step()
    return float(counter.get_total_flops())


def ceiling(device: torch.device) -> float:
    """Measure the FLOP/s of a large matrix product."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = [timed(lambda: a @ b, device) for _ in range(10)]
    return 2 * size**3 / statistics.median(times[3:])


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, on a CPU those of its threads: other programs do not change them much."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronize()
    start = clock()
    call()
    synchronize()
    return clock() - start


def reserved(device: torch.device) -> int:
    """Return the bytes that torch holds of the GPU's memory and cannot give back."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def compare(side: Side, plain: Side, device: torch.device, rounds: int) -> None:
    """Warm up a side, measure it in turns with the plain one, and its memory."""
    counters.clear()
    # compiling, the choice of algorithms, momenta; then the capture of graphs; on a CPU, memory that is kept
    side.step()
    before = reserved(device)
    side.step()
    graphs = reserved(device) - before
    side.compiler["graphs"] = counters["stats"]["unique_graphs"]
    side.compiler["graph_breaks"] = sum(counters["graph_break"].values())
    plain.seconds = []
    for _ in range(rounds):
        for one in (plain,) if side is plain else (plain, side):
            one.seconds.append(timed(one.step, device))
    side.peak = graphs + peak_bytes(side.step, device.type)


def row_of(side: Side, plain: Side, flops: float, top: float) -> dict[str, Any]:
    """Return the figures of a side that has been compared, and print them."""
    seconds, compiled = statistics.median(side.seconds), side.compiler["graphs"] > 0
    runs = (side.module.run_step, side.module.net.run_in_training)
    graphs = any(getattr(run, "problem", "none") is None for run in runs)
    lacks = [", not compiled"] if "compile=yes" in SIDES[side.name] and not compiled else []
    lacks += [", not recorded"] if "cuda_graphs=yes" in SIDES[side.name] and not graphs else []
    row = {
        "side": "".join([side.name, *lacks]),
        "seconds": seconds,
        "speed_ratio": statistics.median(plain.seconds) / seconds,
        "peak_mib": side.peak / 2**20,
        "peak_ratio": side.peak / plain.peak,
        "of_ceiling": flops / seconds / top,
        **side.compiler,
    }
    print(
        f"{row['side']:<28}{seconds:>9.3f}{row['speed_ratio']:>8.2f}{row['peak_mib']:>10.0f}"
        f"{row['peak_ratio']:>8.2f}{row['of_ceiling']:>8.2f}{side.compiler['graph_breaks']:>8}",
        flush=True,
    )
    return row


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--size", default="1920x2304", help="HEIGHTxWIDTH of the image (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each side (default: %(default)s)")
    parser.add_argument("--config", default="vistas_r50", help="an experiment of configs/ (default: %(default)s)")
    # compiled sides last: compiling takes minutes
    everything = sorted(list(SIDES)[1:], key=lambda name: "compile=yes" in SIDES[name])
    parser.add_argument(
        "--sides", nargs="+", choices=everything, default=everything, help="beside plain (default: all)"
    )
    parser.add_argument("--profile", action="store_true", help="also list the kernels, and how busy they keep the GPU")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    process.apply_settings()  # as the command line does it, for all sides
    device = torch.device(arguments.device)
    # there is one size: static shapes compile sooner
    torch._dynamo.maybe_mark_dynamic = lambda *_: None
    height, width = (int(n) for n in arguments.size.split("x"))
    batch, world = street(noise(height, width), VISTAS).with_target_info(), World(device=device)
    plain = make("plain", batch, world, arguments.config)
    flops, top = flops_of(plain), ceiling(device)
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(device), "config": arguments.config}
    found |= {"size": [height, width], "flops": flops, "ceiling": top, "rounds": arguments.rounds}
    found |= {"rows": [], "failed": {}}
    if device.type == "cuda":
        found["card"] = torch.cuda.get_device_name(device)
    print(f"torch {torch.__version__}, {device}, {height}x{width}, {flops / 1e12:.2f} TFLOP a step, ", end="")
    print(f"ceiling {top / 1e12:.2f} TFLOP/s\n")
    print(f"{'side':<28}{'s':>9}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}{'of top':>8}{'breaks':>8}", flush=True)
    for name in ("plain", *arguments.sides):
        try:
            side = plain if name == "plain" else make(name, batch, world, arguments.config)
            compare(side, plain, device, arguments.rounds)
            found["rows"].append(row_of(side, plain, flops, top))
            if arguments.profile:
                found["rows"][-1]["step"] = profiled(side.step, device, 1)
        except Exception:
            found["failed"][name] = traceback.format_exc()
            print(f"{name}: failed\n{found['failed'][name]}", flush=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(found, indent=1))
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
