"""An augmentation of the user: the same random numbers for any number of workers and in a resumed training."""

import pytest
import torch
from support.components import assert_refused, component_file

from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.training.setup import open_loader
from seamseg.utils.distributed import World

pytestmark = pytest.mark.usefixtures("narrow", "imported")

RAIN = template("augmentation", "rain")
file, options = component_file("my_rain.py", RAIN, "augmentation rain.strength=.9")


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
    assert_refused(options("run"), message, file, RAIN[RAIN.rindex("return") :], code)
