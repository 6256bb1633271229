"""Memory stays level over hundreds of training steps and of requests of ever new sizes.

    python tests/test_memory_soak.py train|serve FOLDER

prints the memory of the process in MiB after 200 steps and after all.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

EARLY, STEPS, SIZES = 200, 500, 100
"""After 200 steps all sizes were met, and oneDNN keeps as many compiled convolutions as it ever will."""
GROWTH = 1.05
"""Keeping the images alone would make 1.1."""


def size_of(number):
    return 64 + 2 * (number % SIZES), 64 + 2 * (number * 37 % SIZES)


@contextmanager
def train(folder):
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
def serve(folder):
    from support.micro import narrow_body
    from support.serving import png, serving
    from support.small_models import write_run

    import seamseg

    with narrow_body():
        predictor = seamseg.load(write_run(folder / "run"), device="cpu")
    with serving(predictor) as client:

        def request(number):
            photo = np.random.default_rng(number).integers(0, 255, (*size_of(number), 3), dtype=np.uint8)
            assert client.predict(png(photo)).status == 200

        yield request


@pytest.mark.slow
@pytest.mark.parametrize("way", ["train", "serve"])
def test_memory_stays_level(way, tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1")
    words = [sys.executable, __file__, way, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    early, late = map(float, done.stdout.split()[-2:])
    assert late < GROWTH * early, f"{early:.0f} MiB after {EARLY} steps, {late:.0f} after {STEPS}"


if __name__ == "__main__":
    with {"train": train, "serve": serve}[sys.argv[1]](Path(sys.argv[2])) as step:
        for number in range(STEPS):
            step(number)
            if number + 1 in (EARLY, STEPS):
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                print(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, flush=True)
