"""A crop of the user: in worker processes and in a resumed training the same, without a crop size of the core."""

from __future__ import annotations

import pytest
from support.components import assert_refused, component_file

from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

RARE = (
    template("crop", "rare") + "from seamseg.utils.errors import InputError\ndef fail(): raise InputError('no luck')\n"
)
CHOSEN = ("dataloader.crop=rare", "crop rare.category=2", "dataloader.crop_size=(20, 20)")
file, options = component_file("my_rare.py", RARE, *CHOSEN)


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


MISTAKES = {
    "another type": ("CropParams(size, (y, x", "(size, (y, x", "must return CropParams, returned tuple"),
    "outside": ("(y, x, h, w)", "(y + 9999, x, h, w)", r"the window \(\d+, \d+, 20, 20\) .* is not"),
    "fractions": ("(y, x, h, w)", "(y / 2, x, h, w)", "TypeError: 'float' object"),
    "a change": ("h, w), flip", "h, w), image.ids.fill(0)", "ValueError: .*read-only"),
    "an error of its own": ("CropParams(size, (y", "fail() or (size, (y", ": no luck"),
    "no crop": ("(Crop):", ":\n    def __init__(*_): 0\n", "must be a class derived from seamseg.components.Crop"),
}
"""What is replaced in the file, by what, and the error."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, file, options):
    old, new, message = MISTAKES[name]
    error = assert_refused(options("run"), f"^crop rare.*{message}", file, old, new)
    # for an InputError an unreadable image is replaced
    assert isinstance(error, InputError) == (name == "no crop")
