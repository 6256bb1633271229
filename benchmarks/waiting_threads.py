"""A training step on a CPU that others use, too: threads that spin while they wait, threads that sleep, one thread.

    python benchmarks/waiting_threads.py [--rounds 3] [--neighbours 1] [--steps 5]

Each measurement is a process of its own, because the variables are read when one starts: the median of a few steps of
`toy_city_r18` on a picture of 128x256, with as many threads as there are cores, alone and beside busy loops. They take
turns; medians and their ratio to the default are printed. Anything else on the machine is a neighbour as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {
    "default": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}


def work(steps: int) -> None:
    """Print the median seconds of a step; the first one does not count."""
    import time

    import torch
    from street import CITYSCAPES, noise, street

    from seamseg.config import load_config
    from seamseg.models.build import build_training_module

    torch.manual_seed(0)
    config = load_config(Path(__file__).parents[1] / "configs" / "toy_city_r18.ini")
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    batch = street(noise(128, 256), CITYSCAPES)
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        torch.stack(list(module(batch).means.values())).sum().backward()
        module.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    print(statistics.median(times[1:]))


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds(variables: dict[str, str], neighbours: int, steps: int) -> float:
    """Median seconds of a step in a fresh process with these variables of OpenMP, and no others of them."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))} | variables
    command = [sys.executable, __file__, "--steps", str(steps), "--work"]
    with busy_loops(neighbours):
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--neighbours", type=int, default=1, help="busy loops (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a process (default: %(default)s)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.steps)
        return
    cases = [(name, neighbours) for neighbours in (0, arguments.neighbours) for name in SETTINGS]
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for name, neighbours in cases:
            times[name, neighbours].append(seconds(SETTINGS[name], neighbours, arguments.steps))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'busy loops':<12}{'setting':<26}{'s a step':>10}{'ratio':>8}")
    for name, neighbours in cases:
        median = statistics.median(times[name, neighbours])
        ratio = statistics.median(times["default", neighbours]) / median
        print(f"{neighbours:<12}{name:<26}{median:>10.3f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
