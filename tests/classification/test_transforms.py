"""Transforms give the numbers of the original for the same random numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from support.golden_backbones import sample_positions
from support.golden_files import DATA, array, has, tensor
from torchvision.transforms import v2

from seamseg.classification.config import InputConfig, load_classifier_config
from seamseg.classification.transforms import (
    TEN_CROPS,
    ColorJitter,
    Lighting,
    test_transform,
    to_float,
    train_transform,
)
from seamseg.utils.errors import InputError

test_transform.__test__ = False  # type: ignore[attr-defined]
SEEDS = range(6)


def seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize("number", SEEDS)
def test_colour_jitter(number: int) -> None:
    seed(number)
    changed = ColorJitter()(tensor("classifier", "tf/img"))
    torch.testing.assert_close(changed, tensor("classifier", f"jitter/{number}/out"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", SEEDS)
def test_lighting(number: int) -> None:
    seed(number)
    changed = Lighting()(tensor("classifier", "tf/img"))
    torch.testing.assert_close(changed, tensor("classifier", f"lighting/{number}/out"), rtol=0, atol=1e-6)


def test_random_resized_crops() -> None:
    crop = v2.RandomResizedCrop(96)
    for width, height, number, *expected in array("classifier", "random_resized_crop/w_h_seed_top_left_height_width"):
        torch.manual_seed(int(number))
        drawn = crop.make_params([Image.new("RGB", (int(width), int(height)))])
        assert [drawn[name] for name in ("top", "left", "height", "width")] == expected


@pytest.mark.parametrize("number", [0, 3])  # of the others the picture is not stored
def test_the_whole_training_transform(number: int) -> None:
    options = load_classifier_config("resnext101_ipabn_lr_512", ["input.crop_train=96"]).input
    seed(number)
    image = train_transform(options)(Image.open(DATA / "flower.png").convert("RGB"))
    name = f"train_transform/{number}"
    assert has("classifier", f"{name}/val")
    stats = [image.mean(), image.std(unbiased=False), image.abs().max()]
    np.testing.assert_allclose(stats, array("classifier", f"{name}/stats"), rtol=1e-5)
    sampled = image.flatten()[sample_positions(name, image.numel(), 64)]
    np.testing.assert_allclose(sampled, array("classifier", f"{name}/val"), rtol=0, atol=1e-5)


def test_the_test_transform_and_its_ten_crops() -> None:
    picture, options = Image.open(DATA / "flower.png").convert("RGB"), InputConfig()
    plain = test_transform(options, 128, 112)(picture)
    pixels = array("backbones", "input_crop_u8")[0]
    mean, std = (np.array(v, np.float32) for v in (options.mean, options.std))
    expected = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    np.testing.assert_allclose(plain.permute(1, 2, 0), expected, rtol=0, atol=1e-6)

    crops = test_transform(options, 128, 112, ten_crops=True)(picture)
    assert crops.shape == (TEN_CROPS, 3, 112, 112)
    assert torch.equal(crops[4], plain)
    scaled = to_float(picture.resize((191, 128), Image.Resampling.BILINEAR))
    corner = v2.functional.normalize(scaled[:, :112, :112], options.mean, options.std)
    torch.testing.assert_close(crops[0], corner)
    assert torch.equal(crops[5], crops[1].flip(-1)), "the upper left corner of the mirror image"


def test_sizes() -> None:
    image = Image.new("RGB", (60, 40), (255, 0, 0))
    options = InputConfig(scale_train=50, crop_train=24, scale_val=-1, crop_val=40)
    assert train_transform(options)(image).shape == (3, 24, 24)
    assert test_transform(options)(image).shape == (3, 40, 40)
    with pytest.raises(InputError, match="does not fit"):
        test_transform(options, scale=32)


def test_the_smallest_crop() -> None:
    image, options = (
        Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint32).astype(np.uint8).reshape(64, 64, 3)),
        InputConfig(),
    )
    whole = train_transform(InputConfig(crop_train=64), min_crop_area=1.0)
    images = [whole(image) for _ in range(8)]
    assert len({float(i.sum()) for i in images}) < 8, "only flips and a few aspect ratios are left"
    assert to_float(image).max() <= 1
    assert options.crop_train == 224
