"""Train in two processes on one GPU: synchronised ABN and the exchange of gradients, through gloo.

    python tests/gpu_checks/one_card.py --device cuda --json one_card.json
    python tests/gpu_checks/one_card.py --device cpu --steps 2

NCCL lets one process use a GPU; gloo (`SEAMSEG_CUDA_BACKEND=gloo`) copies CUDA tensors through the host, so the logic
runs on one card, though not NCCL's. The network of the tests takes steps on images of which some have no thing, with
`unused_parameters` find and fake, on the device and on the CPU, from the same weights, with every anchor and proposal
as a sample. Exit code 1 if the weights of both processes are not equal, or those of both ways or the losses of device
and CPU differ by more than rounding.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

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
from seamseg.utils.distributed import distributed, gather_objects

WAYS = ("find", "fake")
TOLERANCE = {"ranks": 0.0, "ways": 1e-3, "losses": 1e-2}
"""Largest relative differences in float32; some sums have no fixed order on a GPU."""


def images(world, step):
    """Make the batch of a process; some steps have no thing in one or both processes."""
    batch = batch_of(images_of(step, world.size)[world.rank])
    floating = ("images", "boxes")
    return Batch(
        **{name: getattr(batch, name).map(torch.Tensor.float) for name in floating},
        **{name: getattr(batch, name) for name in ("masks", "categories", "iscrowd", "ids", "original_sizes")},
    )


def train(world, way, steps):
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
    weights = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
    return weights, losses, statistics.median(seconds)


def work(rank, join, device, steps, path):
    os.environ.update(SEAMSEG_CUDA_BACKEND="gloo", CUBLAS_WORKSPACE_CONFIG=":4096:8")
    # as on the CPU: convolutions in full float32, sums in a fixed order
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = {}
    for name in dict.fromkeys((device, "cpu")):
        join()
        with narrow_body(), distributed(name) as world:
            weights = {}
            for way in WAYS:
                weights[way], losses, seconds = train(world, way, steps)
                ranks = gather_objects(world, torch.cat([t.flatten() for t in weights[way].values()]))
                gap = max(float((other - ranks[0]).abs().max()) for other in ranks)
                found[f"{way} on {name}"] = {"ranks": gap, "losses": losses, "seconds a step": seconds}
            found[f"find against fake on {name}"] = error(weights["fake"], weights["find"])
    if rank == 0:
        Path(path).write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="steps of each training (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    device = "cuda:0" if arguments.device == "cuda" else arguments.device
    with tempfile.TemporaryDirectory(prefix="seamseg-one-card-") as folder:
        path = Path(folder, "found.json")
        launch(work, 2, device, arguments.steps, str(path), seconds=540)
        found = json.loads(path.read_text())
    gaps = {"ways": found[f"find against fake on {device}"], "ranks": 0.0, "losses": 0.0}
    for way in WAYS:
        row, wanted = found[f"{way} on {device}"], found[f"{way} on cpu"]["losses"]
        # rounding grows from step to step
        row["losses differ"] = max(abs(a - b) / abs(b) for a, b in zip(row["losses"][:3], wanted[:3]))
        gaps["ranks"] = max(gaps["ranks"], row["ranks"])
        gaps["losses"] = max(gaps["losses"], row["losses differ"])
        print(f"{way} on {device}: {json.dumps(row)}")
    bad = [name for name, gap in gaps.items() if not gap <= TOLERANCE[name]]
    print(f"differ: {', '.join(bad)}" if bad else "all agree", gaps)
    if arguments.json:
        summary = {"backend": "gloo", "device": device, "steps": arguments.steps}
        Path(arguments.json).write_text(json.dumps({**summary, **found, "differ": bad}, indent=1))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
