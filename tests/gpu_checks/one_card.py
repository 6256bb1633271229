"""Train in two processes on one GPU: synchronised ABN and the exchange of gradients, through gloo.

    python tests/gpu_checks/one_card.py --device cuda --json one_card.json
    python tests/gpu_checks/one_card.py --device cpu --steps 2

NCCL lets one process use a GPU; gloo (`SEAMSEG_CUDA_BACKEND=gloo`) copies CUDA tensors through the host, so the logic
runs on one card, though not NCCL's. The network of the tests takes steps on images of which some have no thing, with
`unused_parameters` find and fake, on the device and on the CPU, from the same weights, with every anchor and proposal
as a sample. Compared are the weights of both processes (equal bits), of both ways, and the losses of device and CPU.

Exit code 1 if they differ by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from support.micro import CONFIG, narrow_body
from support.processes import launch
from support.step_equality import ALL_SAMPLES, batch_of, error, images_of

from seamseg.config import config_from_string
from seamseg.models.build import build_training_module
from seamseg.structures import Batch
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, distributed, gather_objects

WAYS = ("find", "fake")
TOLERANCE = {"ranks": 0.0, "ways": 1e-3, "losses": 1e-2}
"""Largest relative differences in float32; some sums have no fixed order on a GPU."""


def images(world: World, step: int) -> Batch:
    """Make the batch of a process; some steps have no thing in one or both processes."""
    batch = batch_of(images_of(step, world.size)[world.rank])
    floating = ("images", "boxes")
    return Batch(
        **{name: getattr(batch, name).map(torch.Tensor.float) for name in floating},
        **{name: getattr(batch, name) for name in ("masks", "categories", "iscrowd", "ids", "original_sizes")},
    )


def train(world: World, way: str, steps: int) -> tuple[dict[str, Tensor], list[float], float]:
    """Train; return the weights on the CPU, the total loss of each step, and the median seconds of a step."""
    overrides = (*ALL_SAMPLES, f"general.unused_parameters={way}", "general.precision=fp32")
    config = config_from_string(CONFIG.format(norm="syncbn"), "panoptic", overrides=overrides)
    torch.manual_seed(0)
    module = build_training_module(config, 2, 2).to(world.device).train()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, world)
    rates, losses, seconds = [1e-3 for _ in optimizer.param_groups], [], []
    for step in range(steps):
        start = time.perf_counter()
        losses.append(float(stepper([images(world, step).to(world.device)], rates).total))
        seconds.append(time.perf_counter() - start)
    return {n: t.detach().cpu() for n, t in module.state_dict().items()}, losses, statistics.median(seconds)


def work(rank: int, join: Callable[[], None], device: str, steps: int, path: str) -> None:
    """Run a process: every variant on the device, then on the CPU."""
    os.environ.update(SEAMSEG_CUDA_BACKEND="gloo", CUBLAS_WORKSPACE_CONFIG=":4096:8")
    # as on the CPU: convolutions in full float32, sums in a fixed order
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: dict[str, Any] = {}
    states = {}
    for name in dict.fromkeys((device, "cpu")):
        join()
        with narrow_body(), distributed(name) as world:
            for way in WAYS:
                states[way], losses, seconds = train(world, way, steps)
                ranks = gather_objects(world, flat(states[way]))
                found[f"{way} on {name}"] = {
                    "ranks": max(float((other - ranks[0]).abs().max()) for other in ranks),
                    "losses": losses,
                    "seconds a step": seconds,
                }
                if rank == 0:  # what is done is kept if the next way fails
                    Path(path).write_text(json.dumps(found, indent=1))
            found[f"find against fake on {name}"] = error(states["fake"], states["find"])
    if rank == 0:
        Path(path).write_text(json.dumps(found, indent=1))


def flat(state: dict[str, Tensor]) -> Tensor:
    """Return all weights of a state, without the running statistics, which are averaged after an epoch only."""
    return torch.cat([t.flatten() for name, t in state.items() if "running" not in name and "tracked" not in name])


def main() -> int:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="steps of each training (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    device = "cuda:0" if arguments.device == "cuda" else arguments.device
    with tempfile.TemporaryDirectory(prefix="seamseg-one-card-") as folder:
        path = Path(arguments.json or f"{folder}/found.json").absolute()
        launch(work, 2, device, arguments.steps, str(path), seconds=540)
        found = json.loads(path.read_text())
    bad = []
    print(f"{'':<24}{'seconds a step':>15}{'first loss':>12}{'last loss':>12}{'ranks differ':>14}{'CPU differs':>13}")
    for way in WAYS:
        row, wanted = found[f"{way} on {device}"], found[f"{way} on cpu"]["losses"]
        # rounding grows from step to step
        gap = max(abs(a - b) / abs(b) for a, b in zip(row["losses"][:3], wanted[:3]))
        row["losses differ"] = gap
        bad += [f"{way}: processes"] * (row["ranks"] > TOLERANCE["ranks"])
        bad += [f"{way}: losses"] * (not gap <= TOLERANCE["losses"])
        print(
            f"{way + ' on ' + device:<24}{row['seconds a step']:>15.3f}{row['losses'][0]:>12.4f}"
            f"{row['losses'][-1]:>12.4f}{row['ranks']:>14.1e}{gap:>13.1e}"
        )
    ways = found[f"find against fake on {device}"]
    bad += ["find against fake"] * (not ways <= TOLERANCE["ways"])
    print(f"find against fake: {ways:.1e}")
    print(f"differ: {', '.join(bad)}" if bad else "all agree")
    if arguments.json:
        summary = {"backend": "gloo", "device": device, "steps": arguments.steps}
        Path(arguments.json).write_text(json.dumps({**summary, **found, "differ": bad}, indent=1))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
