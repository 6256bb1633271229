"""Time training and prediction on a CPU shared with other programs, by the time that threads spin before sleeping.

    python benchmarks/waiting_threads.py [--rounds 5] [--settings NAME=VALUE ...] [training|predict|thread|threads]

The threads of an operator wait for each other at its end. libgomp lets them spin first (`GOMP_SPINCOUNT`), then sleep.
`training`: a step of toy_city_r18, 4 images of 128x256; `predict`: vistas_r50 at 512x767, from file to file;
`thread`: toy_city_r18 on an input of 256x512, in a thread of its own; `threads`: the same, when another thread has run
the network before: libgomp keeps the threads of both, more than there are cores, and none spins.
All run alone, beside one niced busy loop, and beside as many busy loops as there are cores. The loops have a session
of their own, as programs of another terminal have: Linux divides the CPU between sessions first (sched_autogroup), and
`nice` counts within one only.

Each setting is a process of its own, because libgomp reads it when it is loaded; in each round every process works once
for each kind of neighbours. Medians are printed, with the least and the most, and their ratio to the first setting
without neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

SETTINGS = [
    "GOMP_SPINCOUNT=300000",
    "GOMP_SPINCOUNT=3000",
    "OMP_WAIT_POLICY=active,GOMP_SPINCOUNT=3000",
    "OMP_WAIT_POLICY=passive",
    "OMP_NUM_THREADS=1",
]
"""Variables of a process; the first are the reference, libgomp's default."""
CORES = os.cpu_count() or 1
NEIGHBOURS = {"none": (0, 0), "niced": (1, 19), "all": (CORES, 0)}
"""Number of busy loops and their nice level."""
REPEATS = {"training": 3, "predict": 1, "thread": 5, "threads": 5}
"""Steps or images of a measurement; it is their median."""


def training() -> Callable[[], object]:
    """Make a training step of toy_city_r18, four images."""
    import torch
    from street import CITYSCAPES, noise, street

    from seamseg.config import load_config
    from seamseg.models.build import build_training_module
    from seamseg.training.optim.optimizer import build_optimizer
    from seamseg.training.options import TrainerOptions
    from seamseg.training.step import Stepper
    from seamseg.utils.distributed import World

    torch.manual_seed(0)
    config = load_config(Path(__file__).parents[1] / "configs" / "toy_city_r18.ini")
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, World(device=torch.device("cpu")))
    batch = street(noise(128, 256, 4), CITYSCAPES)
    return lambda: stepper([batch], [1e-4 for _ in optimizer.param_groups])


def predict(folder: Path) -> Callable[[], object]:
    """Return a function that predicts one image."""
    import torch
    from stages import StageProfile, random_predictor

    from seamseg.utils.synthetic_image import write_synthetic_image

    photo = folder / "street.jpg"
    write_synthetic_image(photo, (512, 767))
    return StageProfile(random_predictor(torch.device("cpu"), 512), photo, folder, random_weights=True).run


def in_thread(others: int) -> Callable[[], object]:
    """Return a function that predicts one image in a thread, after as many others that still live."""
    import torch
    from stages import random_predictor

    from seamseg.utils.parallel import call_in_thread
    from seamseg.utils.synthetic_image import synthetic_image

    predictor = call_in_thread(lambda: random_predictor(torch.device("cpu"), 256, config="toy_city_r18"))
    pixels = synthetic_image((256, 512))
    pools = [ThreadPoolExecutor(1) for _ in range(others + 1)]
    for pool in pools:
        pool.submit(predictor.raw, [pixels]).result()
    return lambda: pools[-1].submit(predictor.raw, [pixels]).result()


def work(name: str) -> None:
    """Run the work for each line of stdin and print its median seconds."""
    from seamseg.utils import process_settings

    process_settings.apply()
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[], Callable[[], object]]] = {
            "training": training,
            "predict": lambda: predict(Path(folder)),
            "thread": lambda: in_thread(0),
            "threads": lambda: in_thread(1),
        }
        run = makers[name]()
        run()
        print("ready", flush=True)
        for _ in sys.stdin:
            times = []
            for _ in range(REPEATS[name]):
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
            print(statistics.median(times), flush=True)


def variables(setting: str) -> dict[str, str]:
    """Return the environment of a setting."""
    return dict(pair.split("=", 1) for pair in setting.split(",") if "=" in pair)


class Worker:
    """A process that does one kind of work with the variables of one setting."""

    def __init__(self, name: str, variables: dict[str, str]) -> None:
        environment = {key: v for key, v in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))} | variables
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def seconds(self) -> float:
        """Return the seconds of one measurement."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process that measures has ended")
        return line


@contextmanager
def busy_loops(count: int, nice: int) -> Iterator[None]:
    """Start processes that each keep a core busy, all in one session."""
    loop = f"{sys.executable} -c 'while True: pass' & "
    shell = subprocess.Popen(["nice", "-n", str(nice), "sh", "-c", loop * count + "wait"], start_new_session=True)
    try:
        # the scheduler has spread them by then
        time.sleep(0.5 if count else 0)
        yield
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(REPEATS), help=f"{', '.join(REPEATS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind (default: %(default)s)")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, help="NAME=VALUE[,...] (default: %(default)s)")
    parser.add_argument("--neighbours", nargs="+", choices=list(NEIGHBOURS), default=list(NEIGHBOURS))
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--work", choices=list(REPEATS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    from timing import processor

    load, rows = os.getloadavg()[0], []
    print(f"{processor()}, {CORES} cores, load {load:.1f}, {arguments.rounds} rounds\n")
    for name in arguments.what:
        rows += measure(name, arguments)
    if arguments.json:
        summary = {"cpu": processor(), "cores": CORES, "load_before": load, "rounds": arguments.rounds}
        with open(arguments.json, "w") as file:
            json.dump({**summary, "rows": rows}, file, indent=1)


def measure(name: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Measure one kind of work, and print it."""
    settings, kinds, rounds = arguments.settings, arguments.neighbours, arguments.rounds
    times: dict[tuple[str, str], list[float]] = {(n, s): [] for n in kinds for s in settings}
    with ExitStack() as stack:
        workers = {}
        for setting in settings:
            workers[setting] = Worker(name, variables(setting))
            stack.callback(workers[setting].stop)
        for _ in range(rounds):
            for neighbours in kinds:
                with busy_loops(*NEIGHBOURS[neighbours]):
                    for setting, worker in workers.items():
                        times[neighbours, setting].append(worker.seconds())
    print(f"{name:<10}{'neighbours':<12}{'setting':<43}{'s':>8}{'least':>8}{'most':>8}{'to the reference alone':>24}")
    rows: list[dict[str, object]] = []
    reference = statistics.median(times[kinds[0], settings[0]])
    for (neighbours, setting), values in times.items():
        least, median, most = min(values), statistics.median(values), max(values)
        print(
            f"{'':<10}{neighbours:<12}{setting:<43}{median:>8.3f}{least:>8.3f}{most:>8.3f}{median / reference:>24.2f}"
        )
        row: dict[str, object] = {"work": name, "neighbours": neighbours, "setting": setting, "seconds": median}
        rows.append({**row, "least": least, "most": most, "ratio": median / reference})
    return rows


if __name__ == "__main__":
    main()
