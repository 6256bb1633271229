"""A training step needs shapes only: nothing that it computes decides on what it does, nor on its memory."""

import pytest
import torch
from support.micro import narrow_body
from support.networks import NARROW, tiny_config, toy_batch
from support.simulated import simulated_step

from seamseg.config import load_config
from seamseg.structures import Batch, PackedSequence

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
        result, peak = simulated_step(tiny_config(kind, overrides=(NARROW, FIXED, *overrides)), batch, (2, 3))
    assert result.total.shape == result.skipped.shape == ()
    assert peak > 0


def street() -> Batch:
    """An image of 1920 x 2304 with 60 things."""
    count = 1 + CLASSES[0] + 60
    return Batch(
        images=PackedSequence([torch.empty(3, 1920, 2304)]),
        masks=PackedSequence([torch.zeros(1, 1920, 2304, dtype=torch.long)]),
        categories=PackedSequence([torch.tensor([255, *range(28), *[28 + i % 37 for i in range(60)]])]),
        iscrowd=PackedSequence([torch.zeros(count, dtype=torch.uint8)]),
        boxes=PackedSequence([torch.rand(count, 4)]),
        ids=["0"],
        original_sizes=[(1920, 2304)],
    ).with_target_info()


@pytest.mark.slow
def test_memory_of_a_step_of_the_largest_network():
    """In half precision 2634 MiB, recomputed 1646, plain 5103; on a GPU the goal is 0.48 times plain."""
    plain, half = ("channels_last=no",), ("channels_last=yes", "precision=bf16")
    peaks = []
    for options in (plain, half, (*half, "checkpoint_body=yes")):
        overrides = [FIXED, *(f"general.{option}" for option in options)]
        peaks.append(simulated_step(load_config("vistas_r50", overrides=overrides), street(), CLASSES)[1])
    assert peaks[1] < 0.53 * peaks[0], peaks
    assert peaks[2] < 0.34 * peaks[0], peaks
