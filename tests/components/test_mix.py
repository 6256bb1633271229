"""A mix of the user: targets stay consistent, in worker processes and in a resumed training, with maps of heads."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.components import DEPTH, code_of_page, component_file

from seamseg.config import load_config
from seamseg.data.folder import DatasetFolder
from seamseg.data.loader import set_epoch
from seamseg.training.run import run_training
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")
HALVES = code_of_page("extend_data.md", '@mix("halves"')
CROPS = (
    "mix halves.probability=1",
    "dataloader.crop_size=(48, 56)",
    "dataloader.random_scale=(0.5, 2)",
    "dataloader.random_flip=yes",
)


file = component_file("my_halves.py", HALVES)


@pytest.fixture
def options(component_options, file):
    """Of a training with halvess of crops."""
    return lambda run, *more, **others: component_options(file, run, *CROPS, *more, **others)


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


def test_maps_are_those_of_the_segments(options, tmp_path, micro, micro_config):
    """The map of an image states its segment of each pixel; after a halves it still does, for both images."""
    data = tmp_path / "data"
    shutil.copytree(micro, data)
    (data / "depth").mkdir()
    folder = DatasetFolder(data)
    for info in folder.metadata.images:
        ids = folder.read_mask(info.id)[0]
        np.save(data / "depth" / f"{info.id}.npy", np.where(ids > 0, np.asarray(info.cat)[ids] + 1, 0))
    head = tmp_path / "my_depth.py"
    head.write_text(DEPTH)
    given = (*options("run").overrides, f"general.components={head}, {tmp_path / 'my_halves.py'}")
    for batch in batches(micro_config, data, given):
        ids, depth = batch.masks[0][0], batch.maps["depth"][0][0]
        assert torch.equal(depth[ids > 0], (batch.categories[0][ids][ids > 0] + 1) * 0.5)
        assert (depth[ids == 0] == -1).all()


def test_transforms_on_the_device_see_the_same(options, micro, micro_config):
    given = options("run").overrides
    here, there = (
        batches(micro_config, micro, (*given, *more)) for more in ((), ("dataloader.device_transforms=yes",))
    )
    flips = set()
    for a, b in zip(here, there, strict=True):
        flip = b.deferred[0].flip
        flips.add(flip)
        assert torch.equal(a.masks[0], (b.masks[0].flip(-1) if flip else b.masks[0]).long())
        assert torch.equal(a.cut[0], b.cut[0])
    assert flips == {True, False}


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
    file.write_text(HALVES.replace(RETURNED, code))
    with pytest.raises(SeamsegError, match=f"^mix halves.*{message}") as error:
        run_training(options("run"))
    assert not isinstance(error.value, InputError), "an unreadable image would be replaced"
    assert "\n" not in str(error.value)


def test_a_data_set_that_does_not_suit(file, options):
    code = """
    def __init__(self, keys, reader):
        raise InputError(f"mix halves: {reader.root.name} has {len(reader.images)} images only")
"""
    text = HALVES.replace("    def combine", f"{code}\n    def combine")
    file.write_text("from seamseg.utils.errors import InputError\n" + text)
    with pytest.raises(InputError, match=r"mix halves: \w+ has \d images only$"):
        run_training(options("run"))


def test_what_is_no_mix(file, options):
    text = HALVES.replace("Halves(Mix)", "Halves").replace("def combine", "def __init__(*_): return\n\n    def combine")
    file.write_text(text)
    with pytest.raises(InputError, match=r"must be a class derived from seamseg\.components\.Mix"):
        run_training(options("run"))


def test_an_image_without_others(options, file, micro, micro_config, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(micro, data)
    (data / "lst" / "train.txt").write_text("train0\n")
    checked = "        assert load([0]) is None and load([]) is None\n        if other is None"
    text = HALVES.replace("        if other is None", checked)
    file.write_text(text.replace(RETURNED, "1 / 0"))
    run_training(replace(options("run", "scheduler.epochs=1"), data=data))
