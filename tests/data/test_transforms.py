"""Transforms against tensors of the original, and against Pillow."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.sections import train_transform

from seamseg.data.input_size import InputSize, scaled_size
from seamseg.data.transforms import Normalise, compact_ids
from seamseg.inference.images import network_input
from seamseg.maps.idmaps.segments import resize_nearest

DATA = Path(__file__).parents[1] / "golden"
OPS = np.load(DATA / "ops.npz")
MEAN = (0.41738699, 0.45732192, 0.46886091)
STD = (0.25685097, 0.26509955, 0.29067996)
NORM = {"rgb_mean": MEAN, "rgb_std": STD}
RAW = Image.fromarray(OPS["transform/raw"])
MASK = OPS["transform/msk"][None]
CAT, CROWD = OPS["transform/cat"].tolist(), OPS["transform/iscrowd"].tolist()

CASES = {
    "plain32": (train_transform(32, 100, **NORM), None),
    "long_limited": (train_transform(64, 60, **NORM), None),
    **{
        f"aug_seed{s}": (train_transform(32, 100, **NORM, random_flip=True, random_scale=(0.5, 2)), s) for s in range(3)
    },
    "aug_discrete": (train_transform(32, 100, **NORM, random_flip=True, random_scale=(0.5, 1, 1.5)), 5),
}


@pytest.mark.parametrize("case", CASES)
def test_training_samples_match_the_original(case):
    """By the global random numbers and by those of a generator, which leaves the global ones alone."""
    transform, seed = CASES[case]
    random.seed(seed)
    state = random.getstate()
    own = transform(RAW, MASK, CAT, CROWD, random.Random(seed))
    assert random.getstate() == state
    for item in (own, transform(RAW, MASK, CAT, CROWD)):
        for name, value in item.items():
            expected = torch.from_numpy(OPS[f"transform/{case}/{name}"])
            assert value.dtype == expected.dtype
            assert torch.equal(value, expected), name


def network_image(image, shortest, mean=None, std=None):
    pixels = torch.from_numpy(network_input(image, InputSize(shortest)))
    return Normalise(mean, std)(pixels.permute(2, 0, 1))


def test_test_images_match_the_original():
    image = network_image(RAW, 32, MEAN, STD)
    assert torch.equal(image, torch.from_numpy(OPS["transform/test32/img"]))
    image = network_image(RAW, None)
    assert torch.equal(image, torch.from_numpy(OPS["transform/test_nonorm/img"]))


@pytest.mark.parametrize("name", ["flower", "china", "astronaut"])
def test_real_photos_match_the_original(name):
    stored = np.load(DATA / "inputs.npz")
    resized = Image.fromarray(stored[f"{name}_resized_u8"])
    image = network_image(resized, int(stored[f"{name}_shortest"]), MEAN, STD)
    stats = [image.mean(dtype=torch.float64), image.to(torch.float64).std(correction=0), image.max()]
    assert np.allclose(stats, stored[f"{name}_tensor_stats"], rtol=1e-5)
    samples = image.flatten()[torch.from_numpy(stored[f"{name}_tensor_idx"])]
    assert torch.equal(samples, torch.from_numpy(stored[f"{name}_tensor_val"]))


def test_sizes():
    assert scaled_size((1024, 2048), 1024, 4096) == (1024, 2048)
    assert scaled_size((500, 20000), 1024, None) == (1024, 40960)
    assert scaled_size((500, 20000), 1024, 4096) == (102, 4096)
    assert scaled_size((1, 1), 256, 512) == (256, 256)
    assert scaled_size((1, 20000), 256, 512) == (1, 512)  # int() alone would give 0


@settings(max_examples=200)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(1, 60))
def test_nearest_matches_pillow(height, width, new_height, new_width):
    ids = np.arange(height * width, dtype=np.int32).reshape(height, width)
    ours = resize_nearest(ids[None], (new_height, new_width))[0]
    pillow = np.asarray(Image.fromarray(ids).resize((new_width, new_height), Image.Resampling.NEAREST))
    assert np.array_equal(ours, pillow)


@given(st.lists(st.integers(0, 6), min_size=4, max_size=30))
def test_compacted_ids_keep_their_class(values):
    ids = np.array(values).reshape(1, 1, -1)
    cat, crowd = [255, 10, 11, 12, 13, 14, 15], [0, 1, 0, 1, 0, 1, 0]
    new, classes, crowds = compact_ids(ids, cat, crowd)
    assert np.array_equal(classes[new], np.array(cat)[ids])
    assert np.array_equal(crowds[new], np.array(crowd)[ids])
    assert (new == 0).sum() == (ids == 0).sum()
    assert set(np.unique(new)) | {0} == set(range(len(classes)))


def test_layers_are_kept():
    layers = np.stack([MASK[0], np.zeros_like(MASK[0])])
    layers[1, 5:9, 6:20] = 5
    item = train_transform(41, None)(RAW, layers, [*CAT, 7], [*CROWD, 0])
    assert item["msk"].shape == (2, 41, 53)
    assert item["bbx"][5].tolist() == [5, 6, 9, 20]
