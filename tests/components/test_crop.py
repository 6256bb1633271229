"""A crop of the user: in worker processes and in a resumed training the same, without a crop size of the core."""

from __future__ import annotations

import pytest
from support.components import component_file, forget

from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.training.run import run_training
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

RARE = template("crop", "rare")
CHOSEN = ("dataloader.crop=rare", "crop rare.category=2", "dataloader.crop_size=(20, 20)")


file = component_file("my_rare.py", RARE)


@pytest.fixture
def options(component_options, file):
    """Of a training with the crop."""
    return lambda run, *more, **others: component_options(file, run, *CHOSEN, *more, **others)


@pytest.mark.parametrize("more", [(), ("dataloader.device_transforms=yes", "dataloader.fast_decode=yes")])
def test_crops_contain_the_class(options, micro, micro_config, more):
    config = load_config(micro_config, None, options("run", *more).overrides)
    loader = open_loader(config, micro, "micro.ini", World())
    has_class = {image.id for image in loader.dataset.images if 2 in image.cat}
    assert has_class
    for batch in loader:
        assert batch.masks[0].shape == (1, 20, 20)
        assert not batch.deferred or not batch.deferred[0].flip
        assert batch.cut is not None, "crops cut their things, whatever crops them"
        if batch.ids[0] in has_class:
            assert 2 in batch.categories[0]


def test_a_model_predicts_without_the_file(options, micro, tmp_path, seamseg_main):
    run_training(options("run", "scheduler.epochs=1"))
    forget("my_rare")
    photo = micro / "img" / "val0.png"
    assert seamseg_main("predict", tmp_path / "run", photo, tmp_path / "out", "--device", "cpu") == 0


MISTAKES = {
    "another type": ("CropParams(size, (y, x", "(size, (y, x", "must return CropParams, returned tuple"),
    "outside": ("(y, x, h, w)", "(y + 9999, x, h, w)", r"the window \(\d+, \d+, 20, 20\) .* is not"),
    "fractions": ("(y, x, h, w)", "(y / 2, x, h, w)", "TypeError: 'float' object"),
    "a change": ("h, w), flip", "h, w), image.ids.fill(0)", "ValueError: .*read-only"),
    "an error of its own": ("CropParams(size, (y", "fail() or (size, (y", ": no luck"),
}
"""What is replaced in the file, by what, and the error."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, file, options):
    old, new, message = MISTAKES[name]
    assert RARE.count(old) == 1
    failing = "from seamseg.utils.errors import InputError\ndef fail(): raise InputError('no luck')\n"
    text = RARE.replace(old, new)
    file.write_text(text + failing)
    with pytest.raises(SeamsegError, match=f"^crop rare.*{message}") as error:
        run_training(options("run"))
    assert not isinstance(error.value, InputError), "an unreadable image would be replaced"
    assert "\n" not in str(error.value)


def test_no_crop(file, options):
    file.write_text(RARE.replace("Rare(Crop)", "Rare").replace("def draw", "def __init__(*_): 0\n    def draw"))
    with pytest.raises(InputError, match=r"^crop rare: must be a class derived from seamseg\.components\.Crop"):
        run_training(options("run"))
