"""Transforms against tensors of the original, and against Pillow."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.sections import sample, train_transform

from seamseg.config import load_config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.input_size import InputSize
from seamseg.data.loader import collate
from seamseg.data.samplers import SampleIndex
from seamseg.data.transforms import compact_ids
from seamseg.inference.images import network_input
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.ops.labels import extract_boxes
from seamseg.structures import DeferredTransform, Normalise
from seamseg.training.prefetch import prepare_batch
from seamseg.utils.errors import InputError

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
    transform, seed = CASES[case]
    random.seed(seed)
    state = random.getstate()
    own = sample(transform, RAW, MASK, CAT, CROWD, random.Random(seed))
    assert random.getstate() == state
    for item in (own, sample(transform, RAW, MASK, CAT, CROWD, random)):
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


def test_sizes():
    assert InputSize(1024, 4096).scaled((1024, 2048)) == (1024, 2048)
    assert InputSize(1024).scaled((500, 20000)) == (1024, 40960)
    assert InputSize(1024, 4096).scaled((500, 20000)) == (102, 4096)
    assert InputSize(256, 512).scaled((1, 1)) == (256, 256)
    assert InputSize(256, 512).scaled((1, 20000)) == (1, 512)  # int() alone would give 0


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
    item = sample(train_transform(41, None), RAW, layers, [*CAT, 7], [*CROWD, 0], random)
    assert item["msk"].shape == (2, 41, 53)
    assert item["bbx"][5].tolist() == [5, 6, 9, 20]


# --- crop, colour jitter and flip: in a worker, on the device, and against Pillow

JITTER = (0.4, 0.4, 0.4, 0.2)


def scene(size, seed=0, count=6):
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    mask = rng.integers(0, count, (1, *size)).astype(np.int32)
    return image, mask, [255, *range(count - 1)], [0] * count


def batch_of(items):
    return collate([{**item, "id": str(i), "size": (1, 1)} for i, item in enumerate(items)])


@pytest.fixture
def options(tmp_path):
    (tmp_path / "a.ini").write_text("[dataloader]\n")
    loading = load_config(tmp_path / "a.ini", "panoptic").dataloader
    return replace(loading, rgb_mean=MEAN, rgb_std=STD)


@settings(max_examples=150)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 80), st.integers(0, 9))
def test_flip_and_scale_match_the_original(height, width, shortest, seed):
    """The original mirrors before it scales; here the scaled image is mirrored."""
    image, mask, cat, crowd = scene((height, width), seed)
    transform = train_transform(shortest, 200, **NORM, random_flip=True, random_scale=(0.5, 2))
    params = transform.sample_params((height, width), Random(seed))
    item = sample(transform, image, mask, cat, crowd, Random(seed))
    h, w = params.size
    if params.deferred.flip:
        image, mask = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mask[..., ::-1]
    pixels = torch.from_numpy(np.array(image.resize((w, h), Image.Resampling.BILINEAR))).permute(2, 0, 1)
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    assert torch.equal(item["img"], (pixels.float() / 255 - mean) / std)
    classes = np.array(cat)[resize_nearest(mask, (h, w))]
    assert np.array_equal(item["cat"].numpy()[item["msk"].numpy()], classes)


@pytest.mark.parametrize("color_jitter", [None, JITTER])
@pytest.mark.parametrize("crop_size", [None, (30, 40)])
@pytest.mark.parametrize("count", [256, 257])
def test_device_transforms_match_worker_transforms(options, color_jitter, crop_size, count):
    augmentation = {"random_flip": True, "random_scale": (0.5, 2), "crop_size": crop_size, "color_jitter": color_jitter}
    scenes = [scene((50, 61), s, count if s % 2 else 6) for s in range(6)]
    here, there = (
        [
            sample(train_transform(48, 100, **NORM, **augmentation, device_transforms=on_device), *parts, Random(s))
            for s, parts in enumerate(scenes)
        ]
        for on_device in (False, True)
    )
    sent = batch_of(there)
    assert sent.images.dtype == torch.uint8
    assert {p.flip for p in sent.deferred} == {True, False}
    assert sent.masks.dtype == (torch.uint8 if count <= 256 else torch.int32)
    done, expected = prepare_batch(sent, options), batch_of(here)
    assert done.deferred is None
    assert prepare_batch(done, options) is done
    assert prepare_batch(expected, options) is expected
    for name in ("images", "masks", "boxes", "categories", "iscrowd"):
        for a, b in zip(getattr(done, name), getattr(expected, name), strict=True):
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name


def test_boxes_of_absent_ids_stay_absent(options):
    scene = Image.new("RGB", (30, 20)), np.ones((1, 20, 30), np.int32), [255, 0], [0, 0]
    item = sample(train_transform(20, None, device_transforms=True), *scene, Random(0))
    item["msk"][0, :5, :3] = 1
    item["deferred"] = DeferredTransform(flip=True)
    done = prepare_batch(batch_of([item]), options)
    assert done.boxes[0].tolist() == [[-1, -1, -1, -1], [0, 0, 20, 30]]
    assert torch.equal(done.boxes[0], extract_boxes(done.masks[0], 2))


@pytest.mark.parametrize("crop", [None, (90, 1000)])
def test_few_sizes_of_multiples(crop):
    transform = train_transform(64, 150, random_scale=(1.0, 1.25, 1.5), crop_size=crop, crop_multiple=16)
    params = [transform.sample_params((70 + seed % 3, 105), Random(seed)) for seed in range(60)]
    windows = [p.window for p in params]
    assert all(h == min(p.size[0], (crop or p.size)[0]) // 16 * 16 for p, (_, _, h, _) in zip(params, windows))
    assert all(w == p.size[1] // 16 * 16 for p, (_, _, _, w) in zip(params, windows))
    assert all(y + h <= p.size[0] and x + w <= p.size[1] for p, (y, x, h, w) in zip(params, windows))
    assert len({p.size for p in params}) > len({window[2:] for window in windows})
    assert len({window[:2] for window in windows}) > 10
    assert transform.sample_params((7, 105), Random(0)).window[2] == 10


@pytest.mark.parametrize(("size", "crop"), [((50, 70), (30, 40)), ((50, 70), (200, 40)), ((64, 64), (64, 64))])
def test_a_crop_is_a_window_of_the_scaled_image(size, crop):
    image, mask, cat, crowd = scene(size)
    mask[0, -3:, -3:] = 6  # outside most crops
    cat, crowd = [*cat, 7], [*crowd, 0]
    smooth = image.resize((9, 7)).resize(image.size, Image.Resampling.BICUBIC)
    transform = train_transform(64, None, crop_size=crop)
    corners = Counter()
    for seed in range(20):
        params = transform.sample_params(size, Random(seed))
        item = sample(transform, smooth, mask, cat, crowd, Random(seed))
        (h, w), (y, x, ch, cw) = params.size, params.window
        assert (ch, cw) == (min(h, crop[0]), min(w, crop[1])) == tuple(item["img"].shape[1:])
        whole = np.asarray(smooth.resize((w, h), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        difference = np.abs(item["img"].numpy() * 255 - whole[:, y : y + ch, x : x + cw])
        assert difference.max() < 1.01  # Pillow holds the edges of a box in single precision
        ids = resize_nearest(mask, (h, w))[:, y : y + ch, x : x + cw]
        assert np.array_equal(item["cat"].numpy()[item["msk"].numpy()], np.array(cat)[ids])
        assert torch.equal(item["bbx"], extract_boxes(item["msk"], len(item["cat"])))
        assert len(item["cat"]) == 1 + len(np.setdiff1d(ids, 0))
        corners[y, x] += 1
    assert len(corners) == 1 if crop == (64, 64) else len(corners) > 10


def test_jitter_factors_come_from_the_rng_and_are_bounded():
    transform = train_transform(40, None, color_jitter=(0.2, 1.5, 0, 0.1))
    drawn = [transform.sample_params((40, 50), Random(seed)).deferred.jitter for seed in range(300)]
    assert drawn[7] == transform.sample_params((40, 50), Random(7)).deferred.jitter
    low, high = np.min(drawn, axis=0), np.max(drawn, axis=0)
    assert (low >= [0.8, 0, 1, -0.1]).all()
    assert (high <= [1.2, 2.5, 1, 0.1]).all()
    assert (low <= [0.82, 0.2, 1, -0.08]).all()
    assert (high >= [1.18, 2.3, 1, 0.08]).all()


@pytest.mark.parametrize("rotated", [False, True])
def test_fast_decode(make_folder, rotated):
    root = make_folder([(256, 400)], ending=".jpg")
    smooth = scene((256, 400))[0].resize((9, 7)).resize((400, 256), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    if rotated:
        smooth = smooth.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = 6
    smooth.save(root / "img" / "im0.jpg", quality=95, exif=exif)
    transform = train_transform(60, 400, random_flip=True, random_scale=(0.5, 1))
    plain, fast = (PanopticDataset(root, "train", transform, fast_decode=on) for on in (False, True))
    for epoch in range(3):
        a, b = (data[SampleIndex(epoch, 0, 0)] for data in (plain, fast))
        assert a["img"].shape == b["img"].shape
        assert torch.equal(a["msk"], b["msk"])
        assert a["size"] == b["size"]
        assert 0 < (a["img"] - b["img"]).abs().mean() < 0.01
    sizes = [fast.reader.read_image(0, size).size for size in ((256, 400), (129, 100), (128, 200), (60, 90), (10, 10))]
    assert sizes == [(400, 256), (400, 256), (200, 128), (100, 64), (50, 32)]
    Image.new("RGB", (90, 64)).save(root / "img" / "im0.jpg")
    with pytest.raises(InputError, match=r"im0.jpg: the image is 90 x 64 pixels"):
        fast[0]
