"""A training step needs shapes only: nothing that it computes decides on what it does, nor on its memory."""

import sys
from pathlib import Path

import pytest
from support.micro import narrow_body
from support.networks import NARROW, in_turn, tiny_config, toy_batch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from street import VISTAS, noise, street
from train_step import config_of
from training_memory import SIDES, simulate

FIXED = "roi.fixed_samples=yes"
CLASSES = (28, 37)
"""Of Vistas."""


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("panoptic", ("general.precision=bf16", "rpn.min_size=4")),
        ("instance_seg", ("general.checkpoint_body=yes",)),
        ("detection", ("optimizer.clip_norm=1", "optimizer.ema=0.9")),
    ],
)
def test_a_step_without_values(kind, overrides):
    batch = toy_batch((64, 96), (80, 64), empty=(1,), crowd=(0,)).with_target_info()
    with narrow_body():
        config = tiny_config(kind, overrides=(NARROW, FIXED, *overrides))
        found = [simulate(config, batch, (2, 3), run) for run in (None, None if kind == "detection" else in_turn)]
    assert all(result.total.shape == result.skipped.shape == () and peak > 0 for result, peak, _ in found)


@pytest.mark.slow
def test_memory_of_a_step_of_the_largest_network():
    """In half precision 2431 MiB, recomputed 1579, plain 5075; on a GPU the goal is 0.48 times plain.

    As it is recorded nothing is read at the full size, and rows of void take a few MiB.
    """
    batch = street(noise(1920, 2304), VISTAS).with_target_info()
    configs = [config_of(side, "vistas_r50", FIXED) for side in SIDES]
    steps = [simulate(config, batch, CLASSES) for config in configs]
    (plain, half, again), flops = ([step[i] for step in steps] for i in (1, 2))
    assert half <= 0.48 * plain
    assert again <= 0.32 * plain
    assert flops[1] <= flops[0] < flops[2]
    result, peak, _ = simulate(configs[1], batch, CLASSES, in_turn)
    assert result.total.shape == ()
    assert peak < 2700 * 2**20
