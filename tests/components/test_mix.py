"""A mix of the user: targets stay consistent, in worker processes and in a resumed training, with maps of heads."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from support.components import assert_refused, code_of_page, component_file

from seamseg.config import load_config
from seamseg.data.loader import set_epoch
from seamseg.training.run import run_training
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")
HALVES = code_of_page("extend_data.md", '@mix("halves"')
CROPS = (
    "mix halves.probability=1",
    "dataloader.crop_size=(48, 56)",
    "dataloader.random_scale=(0.5, 2)",
    "dataloader.random_flip=yes",
)
file, options = component_file("my_halves.py", HALVES, *CROPS)


def batches(config_path, data, overrides, epochs=3):
    loader = open_loader(load_config(config_path, None, overrides), data, "micro.ini", World())
    for epoch in range(epochs):
        set_epoch(loader, epoch)
        yield from loader


def test_the_other_half_is_that_without_it(options, micro, micro_config):
    """Scale, crop and flip of the image are the same; boxes, classes and flags belong to the ids."""
    given = options("run").overrides
    changed = 0
    plain = batches(micro_config, micro, (*given, "mix halves.probability=0"))
    for a, b in zip(plain, batches(micro_config, micro, given), strict=True):
        (one,), (other,) = a.masks, b.masks
        assert a.ids == b.ids
        assert one.shape == other.shape
        assert len(b.categories[0]) == len(b.iscrowd[0]) == len(b.boxes[0]) == len(b.cut[0]) == other.max() + 1
        differs = (a.images[0] != b.images[0]).any(0).any(0)
        half = one.shape[-1] // 2
        columns = differs.nonzero()[:, 0]
        # the flip comes last: the right half of the image may be the left one
        assert len(columns) == 0 or columns.min() >= half or columns.max() < one.shape[-1] - half
        kept = ~differs
        assert torch.equal(a.categories[0][one][..., kept], b.categories[0][other][..., kept])
        for i, box in enumerate(b.boxes[0].tolist()):
            rows, columns = (other[0] == i).nonzero(as_tuple=True)
            assert box[0] < 0 or box == [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
        changed += int(differs.any())
    assert changed > 5


RETURNED = "image.paste(other, range(len(other.cat)), 0, image.ids.shape[2] // 2)"
MISTAKES = {
    "another type": ("image.pixels", "must return an AugmentedImage, returned ndarray"),
    "half the pixels": ("image._replace(pixels=image.pixels[1:])", "pixels must be uint8 of .*, returned uint8"),
    "a flat mask": ("image._replace(ids=image.ids[0])", "the ids are uint8 of .*, expected integers of .L, H, W"),
    "no classes": ("image._replace(ids=image.ids + 99)", r"ids \d+ to \d+ need a class and a crowd flag each"),
    "a class": ("image._replace(cat=image.cat + 7)", "cat must have class 255 for id 0, .*, returned 262"),
    "crowds": ("image._replace(iscrowd=image.iscrowd + 2)", "iscrowd must be 0 or 1, returned 2"),
    "fractions": ("image._replace(cat=image.cat + 0.5)", r"cat must be integers of \(\d+,\), returned float64"),
    "a change": ("image.pixels.fill(0)", "ValueError: .*read-only"),
    "borders": ("image._replace(cut=image.cut[:, :2])", r"cut must be bool of \(\d+, 4\), returned bool of"),
    "maps": ("image._replace(maps={'a': other})", "the maps must be none, returned a"),
    "a name": ("images", r", .*my_halves.py line 21: NameError: name 'images'"),
}
"""What is returned instead, and the error."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, file, options):
    code, message = MISTAKES[name]
    error = assert_refused(options("run"), f"^mix halves.*{message}", file, RETURNED, code)
    assert not isinstance(error, InputError), "an unreadable image would be replaced"


def test_an_image_without_others(options, file, micro, micro_config, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(micro, data)
    (data / "lst" / "train.txt").write_text("train0\n")
    checked = "        assert load([0]) is None and load([]) is None\n        if other is None"
    text = HALVES.replace("        if other is None", checked)
    file.write_text(text.replace(RETURNED, "1 / 0"))
    run_training(replace(options("run", "scheduler.epochs=1"), data=data))
