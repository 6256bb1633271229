"""Class folders: what is read, and errors that name the file; transforms give the numbers of the original."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.classes import make_class_folders
from support.golden_files import DATA, array, has, tensor
from support.golden_weights import sample_positions
from torchvision.transforms import v2

from seamseg.contrib.classification.config import InputConfig, load_classifier_config
from seamseg.contrib.classification.data import (
    TEN_CROPS,
    ClassFolders,
    class_names,
    color_jitter,
    lighting,
    test_transform,
    to_float,
    train_transform,
)
from seamseg.data.input_size import InputSize
from seamseg.inference.images import network_input

test_transform.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_class_folders(tmp_path / "data")


def test_classes_are_the_sorted_folders(root: Path) -> None:
    for name in (".ipynb_checkpoints/1.png", "red/._1.png", "red/@eaDir/1.png"):
        (root / "val" / name).parent.mkdir(exist_ok=True)
        (root / "val" / name).write_text("no image")
    dataset = ClassFolders(root, "val", to_float)
    assert dataset.classes == class_names(root, "val") == ["blue", "green", "red"]
    assert len(dataset) == 9
    image, label, name = dataset[4]
    assert (label, name, image.shape) == (1, "green/1.png", (3, 40, 45))
    assert dataset.metadata.categories == dataset.classes


def seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize(("change", "name"), [(color_jitter, "jitter"), (lighting, "lighting")])
def test_colours(change, name):
    for number in range(6):
        seed(number)
        changed = change(tensor("classifier", "tf/img"))
        torch.testing.assert_close(changed, tensor("classifier", f"{name}/{number}/out"), rtol=0, atol=1e-6)


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
    flower = Image.open(DATA / "flower.png").convert("RGB")
    options = InputConfig(scale_val=128, crop_val=112)
    plain = test_transform(options)(flower)
    pixels = array("backbones", "input_crop_u8")[0]
    mean, std = (np.array(v, np.float32) for v in (options.mean, options.std))
    expected = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    np.testing.assert_allclose(plain.permute(1, 2, 0), expected, rtol=0, atol=1e-6)

    crops = test_transform(options, ten_crops=True)(flower)
    assert crops.shape == (TEN_CROPS, 3, 112, 112)
    assert torch.equal(crops[4], plain)
    odd = picture(640, 428)
    of_torchvision = v2.TenCrop(224)(v2.Resize(256)(odd))
    made = test_transform(InputConfig(mean=(0, 0, 0), std=(1, 1, 1)), ten_crops=True)(odd)
    assert torch.equal(made, torch.stack([to_float(crop) for crop in of_torchvision]))


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8))


@settings(max_examples=150, deadline=None)
@example(107, 160, 64, 64)  # a crop as large as the resized image
@example(640, 428, 256, 224)  # resized to 382 x 256, not 382 x 255
@example(21, 25, -1, 28)  # 7 and 3 pixels are missing
@example(17, 40, -1, 28)  # 11 are missing, 12 too many
@given(st.integers(1, 90), st.integers(1, 90), st.just(-1) | st.integers(1, 90), st.integers(1, 60))
def test_pixels_are_those_of_torchvision(width: int, height: int, scale: int, crop: int) -> None:
    image = picture(width, height)
    steps = [v2.Resize(scale)] if scale != -1 else []
    wanted = v2.Compose([*steps, v2.CenterCrop(crop)])(image)
    size = InputSize(None if scale == -1 else scale, crop=(crop, crop))
    assert size.of((height, width)) == (crop, crop)
    assert np.array_equal(network_input(image, size), np.asarray(wanted))
    if scale == -1 or crop <= scale:
        options = InputConfig(scale_val=scale, crop_val=crop)
        whole = v2.Compose([*steps, v2.CenterCrop(crop), to_float, v2.Normalize(options.mean, options.std)])
        assert torch.equal(test_transform(options)(image), whole(image))
