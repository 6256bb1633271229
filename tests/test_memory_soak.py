"""Memory stays level over hundreds of steps, predictions and requests of ever new sizes.

    python tests/test_memory_soak.py train|predict|serve FOLDER

prints the memory of the process in MiB after 200 steps and after all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

EARLY, STEPS, SIZES = 200, 500, 100
"""After 200 steps all sizes were met, and oneDNN keeps as many compiled convolutions as it ever will."""
GROWTH = 1.05
"""Keeping the images alone would make 1.1."""


def size_of(number: int) -> tuple[int, int]:
    """Height and width of an image."""
    return 64 + 2 * (number % SIZES), 64 + 2 * (number * 37 % SIZES)


def photo(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (*size_of(number), 3), dtype=np.uint8)


@contextmanager
def train(folder: Path) -> Iterator[Callable[[int], object]]:
    """A step of a training."""
    from support.networks import narrow_module, toy_batch
    from support.small_updates import config_of

    from seamseg.training.optim.optimizer import build_optimizer
    from seamseg.training.options import TrainerOptions
    from seamseg.training.step import Stepper
    from seamseg.utils.distributed import World

    module = narrow_module().train()
    config = config_of(lr=0.001)
    stepper = Stepper(TrainerOptions.from_config(config), module, build_optimizer(module.net, config), World())
    rates = [0.001] * len(stepper.optimizer.param_groups)
    yield lambda number: stepper([toy_batch(size_of(number))], rates)


@contextmanager
def predict(folder: Path) -> Iterator[Callable[[int], object]]:
    """A prediction in Python."""
    from support.micro import narrow_body
    from support.small_models import write_run

    import seamseg

    with narrow_body():
        predictor = seamseg.load(write_run(folder / "run"), device="cpu")
    yield lambda number: predictor.predict(photo(number))


@contextmanager
def serve(folder: Path) -> Iterator[Callable[[int], object]]:
    """A request to the server."""
    from support.micro import narrow_body
    from support.serving import png, serving
    from support.small_models import write_run

    import seamseg

    with narrow_body():
        predictor = seamseg.load(write_run(folder / "run"), device="cpu")
    with serving(predictor) as client:

        def request(number: int) -> None:
            assert client.predict(png(photo(number))).status == 200

        yield request


@pytest.mark.slow
@pytest.mark.parametrize("way", [train, predict, serve])
def test_memory_stays_level(way: Callable[..., object], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, way.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]), OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    early, late = map(float, done.stdout.split()[-2:])
    assert late < GROWTH * early, f"{early:.0f} MiB after {EARLY} steps, {late:.0f} after {STEPS}"


def memory() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    with {"train": train, "predict": predict, "serve": serve}[sys.argv[1]](Path(sys.argv[2])) as step:
        for number in range(STEPS):
            step(number)
            if number + 1 in (EARLY, STEPS):
                print(memory(), flush=True)
