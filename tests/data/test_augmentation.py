"""Crop, colour jitter and flip: in a worker, on the device, and against Pillow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.sections import train_transform

from seamseg.config import load_config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import collate
from seamseg.data.samplers import SampleIndex
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.ops.labels import extract_boxes
from seamseg.structures import DeferredTransform
from seamseg.training.prefetch import prepare_batch
from seamseg.utils.errors import InputError

MEAN, STD = (0.41738699, 0.45732192, 0.46886091), (0.25685097, 0.26509955, 0.29067996)
NORM = {"rgb_mean": MEAN, "rgb_std": STD}
JITTER = (0.4, 0.4, 0.4, 0.2)


def scene(size: tuple[int, int], seed: int = 0, count: int = 6) -> tuple[Image.Image, np.ndarray, list[int], list[int]]:
    """Return noise, an id map with `count` ids, and their classes and crowd flags."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    mask = rng.integers(0, count, (1, *size)).astype(np.int32)
    return image, mask, [255, *range(count - 1)], [0] * count


def batch_of(items: list[dict]):
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
    item = transform(image, mask, cat, crowd, Random(seed))
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
@pytest.mark.parametrize("count", [6, 257])
def test_device_transforms_match_worker_transforms(options, color_jitter, crop_size, count):
    augmentation = {"random_flip": True, "random_scale": (0.5, 2), "crop_size": crop_size, "color_jitter": color_jitter}
    scenes = [scene((50, 61), s, count if s % 2 else 6) for s in range(6)]
    here, there = (
        [
            train_transform(48, 100, **NORM, **augmentation, device_transforms=on_device)(*parts, Random(s))
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
    item = train_transform(20, None, device_transforms=True)(
        Image.new("RGB", (30, 20)), np.ones((1, 20, 30), np.int32), [255, 0], [0, 0]
    )
    item["msk"][0, :5, :3] = 1
    item["deferred"] = DeferredTransform(flip=True)
    done = prepare_batch(batch_of([item]), options)
    assert done.boxes[0].tolist() == [[-1, -1, -1, -1], [0, 0, 20, 30]]
    assert torch.equal(done.boxes[0], extract_boxes(done.masks[0], 2))


@pytest.mark.parametrize("crop", [None, (90, 1000)])
def test_few_sizes_of_multiples(crop):
    """A shorter side stays as it is."""
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
        item = transform(smooth, mask, cat, crowd, Random(seed))
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
    """A reduced JPEG gives the same targets and nearly the same pixels."""
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
