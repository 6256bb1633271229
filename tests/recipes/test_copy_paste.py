"""Copy-paste of instances: what is pasted, and its random numbers."""

from __future__ import annotations

from functools import partial
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.micro import make_dataset, write_config

from seamseg.config import load_config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.mixing import AugmentedImage, combine, compact_ids
from seamseg.data.samplers import SampleIndex
from seamseg.data.transforms import AugmentationOptions, TrainTransform
from seamseg.formats.metadata import ImageInfo, Metadata
from seamseg.recipes.copy_paste import CopyPaste, CopyPasteKeys
from seamseg.utils.errors import InputError

STUFF = 2
RANDOM = AugmentationOptions(True, (0.25, 4), (40, 50))


def scene(seed: int, size: tuple[int, int], layers: int, marker: int) -> AugmentedImage:
    """Random rectangles of stuff, things and crowds; the pixels are the marker and their own place."""
    rng = np.random.default_rng(seed)
    cat, iscrowd = [255], [0]
    ids = np.zeros((layers, *size), np.uint8)
    for _ in range(int(rng.integers(0, 6))):
        y, x = rng.integers(0, size[0]), rng.integers(0, size[1])
        h, w = rng.integers(1, size[0] + 1), rng.integers(1, size[1] + 1)
        ids[rng.integers(layers), y : y + h, x : x + w] = len(cat)
        cat.append(int(rng.choice([0, 1, 2, 3, 255])))
        iscrowd.append(int(cat[-1] >= STUFF and rng.random() < 0.3))
    pixels = np.full((*size, 3), marker, np.uint8)
    pixels[..., 1], pixels[..., 2] = np.indices(size)
    return augmented(pixels, *compact_ids(ids, cat, iscrowd))


def augmented(pixels, ids, cat, iscrowd) -> AugmentedImage:
    return AugmentedImage(pixels, ids, cat, iscrowd, np.zeros((len(cat), 4), bool))


READER = SimpleNamespace(
    metadata=Metadata(STUFF, 2, list("abcd"), [(0, 0, 0)] * 4, [0, 1, 2, 3], []),
    images=[ImageInfo("a", [255, 2], (1, 1), [0, 0])],
)
"""Two stuff and two thing classes, and an image with a thing."""


def paste(target: AugmentedImage, source: AugmentedImage, seed: int) -> AugmentedImage:
    """The target with random things of the source."""
    mix = CopyPaste(CopyPasteKeys(1), READER)
    return combine(mix, target, Random(seed), lambda among: source)


sides = st.tuples(st.integers(1, 20), st.integers(1, 20))


@settings(max_examples=150)
@given(st.integers(0, 10_000), sides, sides, st.integers(1, 2), st.integers(1, 2))
def test_pasted_instances_are_whole_and_the_rest_is_unchanged(seed, size, other, layers, other_layers):
    target, source = scene(seed, size, layers, 0), scene(seed + 1, other, other_layers, 1)
    before = target.pixels.copy(), target.ids.copy()
    out = paste(target, source, seed)
    assert np.array_equal(target.pixels, before[0])
    assert np.array_equal(target.ids, before[1])
    assert out.ids.max() < len(out.cat) == len(out.iscrowd)
    assert set(range(1, len(out.cat))) <= set(np.unique(out.ids).tolist())

    things = [i for i, c in enumerate(source.cat) if STUFF <= c != 255 and not source.iscrowd[i]]
    covered = out.pixels[..., 0] == 1
    if not things:
        assert out is target
    assert np.array_equal(out.pixels[~covered], target.pixels[~covered])
    assert np.array_equal(out.cat[out.ids[:, ~covered]], target.cat[target.ids[:, ~covered]])
    assert np.array_equal(out.iscrowd[out.ids[:, ~covered]], target.iscrowd[target.ids[:, ~covered]])
    if not covered.any():
        return
    assert not out.ids[1:, covered].any()
    places = out.pixels[covered].astype(int)[:, 1:]
    shift = np.argwhere(covered) - places
    assert (shift == shift[0]).all()
    # for each new id the ids of the source below it; one of them is its own, others lie in other layers
    found = out.ids[0][covered]
    of_source = source.ids[:, places[:, 0], places[:, 1]]
    chosen = {}
    for new in np.unique(found).tolist():
        rows = of_source[:, found == new]
        own = [i for i in things if (rows == i).any(0).all() and source.cat[i] == out.cat[new]]
        assert own
        assert not out.iscrowd[new]
        assert new not in np.unique(out.ids[:, ~covered])
        chosen[new] = own
    if other_layers == 1:
        assert len({own[0] for own in chosen.values()}) == len(chosen)
        y, x = np.indices(other)
        y, x = y + shift[0, 0], x + shift[0, 1]
        inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        for own in chosen.values():
            whole = inside & (source.ids[0] == own[0])
            assert covered[y[whole], x[whole]].all()


@settings(max_examples=80)
@given(st.integers(0, 10_000), *[st.tuples(*[st.integers(0, 9)] * 4)] * 2, st.booleans())
def test_which_borders_cut_a_thing_is_known_for_each_photo(seed, margins, others, mirror):
    """Where a thing touches a border, its image has a pixel beyond it or not; the pixels tell their own place."""
    photos = [scene(seed + i, (20, 24), 1, i) for i in (0, 1)]
    target, source = (cropped(photo, *m) for photo, m in zip(photos, (margins, others)))
    out = paste(target, source.mirrored() if mirror else source, seed)
    assert out.cut.shape == (len(out.cat), 4)
    last = np.array([19, 23, 19, 23])
    for i in range(1, len(out.cat)):
        rows, columns = (out.ids == i).any(0).nonzero()
        place = out.pixels[rows[0], columns[0]].astype(int)
        pasted = place[0] == 1
        where = np.array([place[1], 23 - place[2] if pasted and mirror else place[2]])
        origin = where - (rows[0], columns[0])  # of the border, in the image
        ends = np.concatenate((origin, origin + out.ids.shape[1:] - 1))
        height, width = out.ids.shape[1:]
        inside = [rows.min() > 0, columns.min() > 0, rows.max() < height - 1, columns.max() < width - 1]
        continues = np.concatenate((ends[:2] > 0, ends[2:] < last[2:]))
        assert np.array_equal(out.cut[i] | inside, continues | inside), i


def cropped(photo: AugmentedImage, top: int, left: int, bottom: int, right: int) -> AugmentedImage:
    height, width = photo.ids.shape[1:]
    window = slice(top, height - bottom), slice(left, width - right)
    ids, cat, iscrowd = compact_ids(photo.ids[:, window[0], window[1]], photo.cat, photo.iscrowd)
    cut = np.tile(np.array([top, left, bottom, right]) > 0, (len(cat), 1))
    return AugmentedImage(photo.pixels[window], ids, cat, iscrowd, cut)


def test_the_number_of_pasted_instances_varies():
    ids = np.zeros((1, 4, 12), np.uint8)
    for i in range(1, 5):
        ids[0, :, 3 * i - 3 : 3 * i] = i
    pixels = np.zeros((4, 12, 3), np.uint8)
    source = augmented(pixels, ids, np.array([255, 2, 2, 3, 2]), np.array([0, 0, 0, 0, 1], np.uint8))
    target = augmented(pixels, np.ones_like(ids), np.array([255, 0]), np.zeros(2, np.uint8))
    counts = [len(paste(target, source, seed).cat) - 2 for seed in range(60)]
    assert set(counts) == {1, 2, 3}


def test_a_covered_instance_vanishes_and_many_ids_become_wide():
    ids = np.zeros((1, 2, 300), np.int32)
    ids[0, 0] = np.arange(300) % 256
    target = augmented(np.zeros((2, 300, 3), np.uint8), *compact_ids(ids, [255] + [2] * 255, [0] * 256))
    narrow = target._replace(ids=target.ids.astype(np.uint8))
    one = np.zeros((1, 2, 300), np.uint8)
    one[0, 1, 7] = 1
    source = augmented(np.ones((2, 300, 3), np.uint8), one, np.array([255, 3]), np.zeros(2, np.uint8))
    out = paste(narrow, source, 0)
    assert out.ids[0, 1, 7] == 256 == len(out.cat) - 1
    over = source._replace(ids=np.ones_like(one))
    alone = paste(narrow, over, 0)
    assert alone.cat.tolist() == [255, 3]
    assert (alone.ids == 1).all()


def opened(root, options=RANDOM, probability=0.0, **given) -> PanopticDataset:
    on_device = given.pop("on_device", False)
    transform = TrainTransform(64, 1000, augmentation=options, on_device=on_device)
    mixes = [partial(CopyPaste, CopyPasteKeys(probability))]
    return PanopticDataset(root, "train", transform, 5, mixes=mixes, **given)


def test_an_image_is_not_pasted_onto_itself(tmp_path):
    """The only other image with things is the source; without another one there is none."""
    root = make_dataset(tmp_path / "two", [1, 0, 1], [1])
    things = [(opened(root)[i]["img"], opened(root, probability=1)[i]) for i in (0, 2)]
    for plain, item in things:
        assert not torch.equal(plain, item["img"])
    alone = make_dataset(tmp_path / "one", [1, 0], [1])
    pasted = False
    for epoch in range(5):
        key = SampleIndex(epoch, 0, 0)
        assert torch.equal(opened(alone)[key]["img"], opened(alone, probability=1)[key]["img"])
        pasted |= 2 in opened(alone, probability=1)[SampleIndex(epoch, 1, 1)]["cat"]
    assert pasted


def test_the_source_is_flipped_for_itself(tmp_path):
    root = make_dataset(tmp_path, [0, 0, 1], [1])
    data = opened(root, AugmentationOptions(random_flip=True), 1, on_device=True)
    _, x0, _, x1 = opened(root, AugmentationOptions())[2]["bbx"][3].tolist()
    found = set()
    for epoch in range(20):
        item = data[SampleIndex(epoch, 0, 0)]
        _, left, _, right = item["bbx"][3].tolist()
        found.add((left, right))
        assert (item["img"][0, item["msk"][0] == 3] > 200).all()
    assert found == {(x0, x1), (96 - x1, 96 - x0)}
    assert x0 + x1 != 96


def test_an_unreadable_source_is_replaced_or_refused(tmp_path):
    root = make_dataset(tmp_path, [1, 2, 0], [1])
    (root / "img" / "train1.png").write_bytes(b"no image")
    strict, lenient = (opened(root, AugmentationOptions(), 1, replace_unreadable=on) for on in (False, True))
    problems = []
    for epoch in range(6):
        key = SampleIndex(epoch, 2, 2)
        item = lenient[key]
        assert item["id"] == "train2"
        assert 2 in item["cat"]
        assert not item["unreadable"], "it is counted where it is drawn itself"
        try:
            strict[key]
        except InputError as error:
            problems.append(str(error))
    assert 0 < len(problems) < 6
    assert all("train1.png: not an image" in problem for problem in problems)


def test_bad_values_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\[mix copy_paste\] probability = 1.5: "):
        load_config(write_config(tmp_path / "a.ini"), None, ["mix copy_paste.probability=1.5"])
    root = make_dataset(tmp_path, [0, 0], [1])
    with pytest.raises(InputError, match=r"\[mix copy_paste\]: no image of split train of .* has an instance") as error:
        opened(root, probability=0.5)
    assert "\n" not in str(error.value)
    opened(root, probability=0)
    with pytest.raises(ValueError, match="need a TrainTransform"):
        PanopticDataset(root, "train", lambda *parts: {}, mixes=[partial(CopyPaste, CopyPasteKeys())])
