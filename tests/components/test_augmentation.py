"""An augmentation of the user: the same random numbers for any number of workers and in a resumed training."""

from __future__ import annotations

import pytest
import torch
from support.components import component_file

from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.training.run import run_training
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

RAIN = template("augmentation", "rain")


file = component_file("my_rain.py", RAIN)


@pytest.fixture
def options(component_options, file):
    """Of a training with rain."""
    return lambda run, *more, **others: component_options(file, run, "augmentation rain.strength=.9", *more, **others)


def test_only_colours_change(options, micro, micro_config):
    batches = []
    for overrides in ((), options("run").overrides):
        config = load_config(micro_config, None, ("dataloader.train_batch_size=1", *overrides))
        loader = open_loader(config, micro, "micro.ini", World())
        batches.append(next(iter(loader)))
    plain, wet = batches
    assert plain.ids == wet.ids
    assert torch.equal(plain.masks[0], wet.masks[0])
    assert (plain.images[0] != wet.images[0]).float().mean() > 0.9


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return pixels * 0.5", "augmentation rain, .*my_rain.py: .*must return uint8 of shape .*, returned float64"),
        ("return pixels[1:]", "augmentation rain, .*must return uint8 of shape"),
        ("return undefined", r"augmentation rain, .*my_rain.py line \d+: NameError: name 'undefined' is not defined"),
    ],
)
def test_mistakes(file, options, code, message):
    file.write_text(RAIN[: RAIN.rindex("return")] + code)
    with pytest.raises(SeamsegError, match=message) as error:
        run_training(options("run"))
    assert "\n" not in str(error.value)
