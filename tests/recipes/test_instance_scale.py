"""Crops around instances of uniform scale: they contain what they are drawn for, lengths and classes are uniform."""

from __future__ import annotations

import math
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.crops import of_mask
from support.micro import write_config

from seamseg.config import load_config
from seamseg.data.mixing import compact_ids
from seamseg.data.transforms import AugmentationOptions, TrainTransform, augment
from seamseg.recipes.instance_scale import InstanceScaleCrop, InstanceScaleKeys
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

STUFF = 2


def around(lengths, shortest=64, longest=1000, scale=(0.25, 4), size=(40, 50)) -> TrainTransform:
    options = AugmentationOptions(True, scale, size, crop=partial(InstanceScaleCrop, InstanceScaleKeys(lengths)))
    return TrainTransform(shortest, longest, augmentation=options)


def rectangles(seed: int) -> tuple[np.ndarray, list[int], list[int]]:
    rng = np.random.default_rng(seed)
    mask = np.ones((1, *rng.integers(20, 200, 2)), np.int32)
    mask[0, 0] = 0
    cat = [255, 0]
    for _ in range(int(rng.integers(0, 4))):
        y, x = (int(rng.integers(1, side - 4)) for side in mask.shape[1:])
        mask[0, y : y + int(rng.integers(4, 150)), x : x + int(rng.integers(4, 150))] = len(cat)
        cat.append(int(rng.integers(STUFF, 4)))
    ids, classes, crowds = compact_ids(mask, cat, [0, 0, *(int(rng.random() < 0.2) for _ in cat[2:])])
    return ids, classes.tolist(), crowds.tolist()


@settings(max_examples=150)
@given(st.integers(0, 10_000))
def test_a_crop_contains_the_instance_it_is_drawn_for(seed):
    mask, cat, iscrowd = rectangles(seed)
    transform, image = around((8, 200)), of_mask(mask, cat, iscrowd)
    focus = transform.crop.focus(image, Random(seed))
    assert focus is not None
    y, x = focus.pixel
    segment = int(mask[0, y, x])
    assert cat[segment] != 255
    assert not iscrowd[segment]
    assert (focus.scale is None) == (cat[segment] < STUFF)
    params = transform.sample_params(image, Random(seed))
    (top, left, height, width), (whole_height, whole_width) = params.window, params.size
    assert 0 <= top <= top + height <= whole_height
    assert 0 <= left <= left + width <= whole_width
    assert (height, width) == (min(whole_height, 40), min(whole_width, 50))
    factor = min(params.size) / min(mask.shape[1:])
    cropped = augment(Image.new("RGB", mask.shape[:0:-1]), mask, cat, iscrowd, params)
    if focus.scale is None:
        return
    rows, columns = (np.flatnonzero((mask[0] == segment).any(axis)) for axis in (1, 0))
    assert focus.box == (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
    length = max(focus.box[2] - focus.box[0], focus.box[3] - focus.box[1])
    if 16 < min(params.size) < 256:  # not at a limit of the scale
        rounded = length / min(mask.shape[1:])  # the shortest side has whole pixels
        assert 8 - rounded <= length * factor <= 200 + rounded
    for low, high, pixel, side, scaled, start, size in zip(
        focus.box[:2], focus.box[2:], focus.pixel, mask.shape[1:], params.size, params.window[:2], params.window[2:]
    ):
        low, high = low * scaled / side, high * scaled / side
        assert start <= (pixel + 0.5) * scaled / side <= start + size
        if math.ceil(high) - math.floor(low) <= size:
            assert start <= low
            assert high <= start + size
        else:
            assert low - 1 <= start
            assert start + size <= high + 1
    if min(rows[-1] + 1 - rows[0], columns[-1] + 1 - columns[0]) * factor > 3:
        assert cat[segment] in cropped.cat.tolist()


def test_lengths_are_uniform_in_octaves():
    """Instances of 6 and of 60 pixels get the same lengths; ordinary scales would multiply both."""
    counts = {}
    for side in (6, 60):
        mask = np.zeros((1, 100, 120), np.int32)
        mask[0, 20 : 20 + side, 30 : 30 + side // 2] = 1
        image, lengths = of_mask(mask, [255, 3], [0, 0]), []
        for seed in range(400):
            params = around((4, 64), 100, None, (0.05, 20), (70, 70)).sample_params(image, Random(seed))
            lengths.append(side * params.size[0] / 100)
        counts[side] = np.histogram(np.log2(lengths), [1.9, 3, 4, 5, 6.1])[0]
        assert counts[side].sum() == 400
        assert (abs(counts[side] - 100) < 35).all()


def test_classes_are_drawn_equally_often_and_a_given_class_is_taken():
    mask, cat = np.zeros((1, 10, 10), np.int32), [255, 0, 2, 2, 2, 3]
    mask[0, :2], mask[0, 2, 0], mask[0, 3, 1], mask[0, 4, 2], mask[0, 5:, :] = 1, 2, 3, 4, 5
    crop = around((4, 8)).crop
    drawn = [crop.focus(of_mask(mask, cat, [0] * 5 + [1]), Random(seed)) for seed in range(300)]
    stuff = sum(focus.scale is None for focus in drawn)
    assert 120 < stuff < 180  # one of two classes: the third is a crowd
    assert len({focus.pixel for focus in drawn if focus.scale}) == 3
    one = [crop.focus(of_mask(mask, cat, [0] * 6, category=3), Random(seed)) for seed in range(20)]
    assert all(focus.pixel[0] >= 5 for focus in one)
    assert crop.focus(of_mask(mask, [255], [0]), Random(0)) is None
    assert crop.focus(of_mask(mask, [255, 1, 1, 1, 1, 1, 0], [0] * 7, category=0), Random(0)) is None


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ([], r"needs \[dataloader\] crop_size"),
        (["dataloader.crop_size=(32, 32)", "dataloader.random_scale=(1, 2, 3)"], "needs .* random_scale of two values"),
        (["crop instance_scale.lengths=(40, 8)"], r"lengths \(40.0, 8.0\) must be \(smallest, largest\)"),
        (["crop instance_scale.lengths=(0, 8)"], r"\[crop instance_scale\] lengths = \(0, 8\): "),
    ],
)
def test_bad_values_are_refused(tmp_path, keys, problem):
    given = ["dataloader.crop=instance_scale", "dataloader.train_batch_size=1", "dataloader.train_set=train", *keys]
    with pytest.raises(InputError, match=problem) as error:
        open_loader(load_config(write_config(tmp_path / "a.ini"), None, given), tmp_path, "a", World())
    assert "\n" not in str(error.value)
