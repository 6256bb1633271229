"""Measure the cost of a second process: a step alone, and in two processes that exchange gradients and statistics.

    python benchmarks/scaling.py [--rounds 5] [--config cityscapes_r50] [--side 256] [--set SECTION.KEY=VALUE]
                                 [--json FILE]

Each process has one thread and a batch of its own of one street, so the ideal is that both take the same time; the
efficiency is the time alone over the time in two, both medians. Rounds alternate: in one the first process works alone
while the other sleeps, in the next they work together. Needs two idle cores; anything else on them is measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from street import CITYSCAPES, noise, street
from timing import processor
from torch import multiprocessing

from seamseg.config import Config, load_config
from seamseg.models.build import build_training_module
from seamseg.structures import Batch
from seamseg.training.ddp import wrap_distributed
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, distributed

CONFIGS = Path(__file__).parents[1] / "configs"


def stepper_of(config: Config, world: World) -> Stepper:
    """Make a network and its training step."""
    torch.manual_seed(0)
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    return Stepper(
        TrainerOptions.from_config(config),
        wrap_distributed(module, world, config.general.unused_parameters),
        build_optimizer(module.net, config),
        world,
    )


def work(rank: int, port: int, arguments: argparse.Namespace) -> None:
    """Run a process: steps alone (first process only) and steps together, in turns."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port))
    config = load_config(CONFIGS / f"{arguments.config}.ini", overrides=arguments.set)
    # synchronised layers use the process group: alone means without one
    alone_config = load_config(
        CONFIGS / f"{arguments.config}.ini", overrides=[*arguments.set, "body.normalization_mode=bn"]
    )
    batch = street(noise(arguments.side, 2 * arguments.side, arguments.images), CITYSCAPES)
    with distributed("cpu") as world:
        alone = stepper_of(alone_config, World()) if world.is_main else None
        together = stepper_of(config, world)
        times: dict[str, list[tuple[float, float]]] = {"alone": [], "together": []}
        for number in range(arguments.rounds + 2):
            # a wait that keeps no core busy
            dist.all_reduce(torch.zeros(1))
            if alone is not None:
                times["alone"].append(seconds(alone, batch))
            dist.all_reduce(torch.zeros(1))
            times["together"].append(seconds(together, batch))
            if number < 2 and world.is_main:
                # the first ones allocate memory, and learn the graph
                times = {name: [] for name in times}
        if world.is_main:
            one, two = (statistics.median(t for t, _ in times[name]) for name in ("alone", "together"))
            busy, busier = (statistics.median(t for _, t in times[name]) for name in ("alone", "together"))
            print(
                f"torch {torch.__version__}, {arguments.config}, {arguments.side}x{2 * arguments.side}, one thread each"
            )
            print(f"alone {one:.3f} s, in two processes {two:.3f} s a step (medians of {arguments.rounds})")
            print(f"seconds of processor: {busy:.3f} and {busier:.3f}, which others on the machine change less")
            print(f"load of the machine {os.getloadavg()[0]:.1f}, of {os.cpu_count()} cores")
            print(f"scaling efficiency {one / two:.2f}")
            if arguments.json:
                facts = {"torch": torch.__version__, "cpu": processor(), "rounds": arguments.rounds}
                facts |= {"config": arguments.config, "side": arguments.side, "images": arguments.images}
                facts |= {"alone": one, "together": two, "alone CPU": busy, "together CPU": busier}
                Path(arguments.json).write_text(json.dumps(facts | {"load": os.getloadavg()[0]}, indent=1))


def seconds(stepper: Stepper, batch: Batch) -> tuple[float, float]:
    """Return the wall and CPU seconds of a step."""
    start, busy = time.perf_counter(), time.process_time()
    stepper([batch], [0.0, 0.0])
    return time.perf_counter() - start, time.process_time() - busy


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--config", default="cityscapes_r50", help="an experiment of configs/ (default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, help="height of the images (default: %(default)s)")
    parser.add_argument("--images", type=int, default=1, help="images a process (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, (port, arguments), nprocs=2)


if __name__ == "__main__":
    main()
