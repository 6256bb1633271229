"""Crops around instances of uniform scale, copy-paste of instances, large-scale jitter."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.micro import make_dataset, write_config

from seamseg.config import load_config
from seamseg.config.checks import check_training
from seamseg.data.dataset import PanopticDataset
from seamseg.data.instances import InstanceOptions, draw_focus, paste_instances
from seamseg.data.loader import LoaderOptions, train_loader
from seamseg.data.samplers import DistributedARBatchSampler, SampleIndex
from seamseg.data.transforms import AugmentationOptions, AugmentedImage, TrainTransform, augment, compact_ids
from seamseg.training.task import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

STUFF = 2
CROPS = TrainTransform(64, 1000, augmentation=AugmentationOptions(True, (0.25, 4), (40, 50)))


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


sides = st.tuples(st.integers(1, 20), st.integers(1, 20))


@settings(max_examples=150)
@given(st.integers(0, 10_000), sides, sides, st.integers(1, 2), st.integers(1, 2))
def test_pasted_instances_are_whole_and_the_rest_is_unchanged(seed, size, other, layers, other_layers):
    target, source = scene(seed, size, layers, 0), scene(seed + 1, other, other_layers, 1)
    before = target.pixels.copy(), target.ids.copy()
    out = paste_instances(target, source, STUFF, Random(seed))
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
    """Where a thing touches a border, its photo has a pixel beyond it or not; the pixels tell their own place."""
    photos = [scene(seed + i, (20, 24), 1, i) for i in (0, 1)]
    target, source = (cropped(photo, *m) for photo, m in zip(photos, (margins, others)))
    out = paste_instances(target, source.mirrored() if mirror else source, STUFF, Random(seed))
    assert out.cut.shape == (len(out.cat), 4)
    last = np.array([19, 23, 19, 23])
    for i in range(1, len(out.cat)):
        rows, columns = (out.ids == i).any(0).nonzero()
        place = out.pixels[rows[0], columns[0]].astype(int)
        pasted = place[0] == 1
        where = np.array([place[1], 23 - place[2] if pasted and mirror else place[2]])
        origin = where - (rows[0], columns[0])  # of the border, in the photo
        ends = np.concatenate((origin, origin + out.ids.shape[1:] - 1))
        inside = [
            rows.min() > 0,
            columns.min() > 0,
            rows.max() < len(out.ids[0]) - 1,
            columns.max() < out.ids.shape[2] - 1,
        ]
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
    counts = [len(paste_instances(target, source, STUFF, Random(seed)).cat) - 2 for seed in range(60)]
    assert set(counts) == {1, 2, 3}


def test_a_covered_instance_vanishes_and_many_ids_become_wide():
    ids = np.zeros((1, 2, 300), np.int32)
    ids[0, 0] = np.arange(300) % 256
    target = augmented(np.zeros((2, 300, 3), np.uint8), *compact_ids(ids, [255] + [2] * 255, [0] * 256))
    narrow = target._replace(ids=target.ids.astype(np.uint8))
    one = np.zeros((1, 2, 300), np.uint8)
    one[0, 1, 7] = 1
    source = augmented(np.ones((2, 300, 3), np.uint8), one, np.array([255, 3]), np.zeros(2, np.uint8))
    out = paste_instances(narrow, source, STUFF, Random(0))
    assert out.ids[0, 1, 7] == 256 == len(out.cat) - 1
    over = source._replace(ids=np.ones_like(one))
    alone = paste_instances(narrow, over, STUFF, Random(0))
    assert alone.cat.tolist() == [255, 3]
    assert (alone.ids == 1).all()


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
    rng = Random(seed)
    focus = draw_focus(mask, cat, iscrowd, STUFF, (8, 200), rng)
    assert focus is not None
    y, x = focus.pixel
    segment = int(mask[0, y, x])
    assert cat[segment] != 255
    assert not iscrowd[segment]
    assert (focus.scale is None) == (cat[segment] < STUFF)
    params = CROPS.sample_params(mask.shape[1:], rng, focus)
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
        lengths = []
        for seed in range(400):
            rng = Random(seed)
            focus = draw_focus(mask, [255, 3], [0, 0], STUFF, (4, 64), rng)
            transform = TrainTransform(100, None, augmentation=AugmentationOptions(True, (0.05, 20), (70, 70)))
            lengths.append(side * transform.sample_params((100, 120), rng, focus).size[0] / 100)
        counts[side] = np.histogram(np.log2(lengths), [1.9, 3, 4, 5, 6.1])[0]
        assert counts[side].sum() == 400
        assert (abs(counts[side] - 100) < 35).all()


def test_classes_are_drawn_equally_often_and_a_given_class_is_taken():
    mask, cat = np.zeros((1, 10, 10), np.int32), [255, 0, 2, 2, 2, 3]
    mask[0, :2], mask[0, 2, 0], mask[0, 3, 1], mask[0, 4, 2], mask[0, 5:, :] = 1, 2, 3, 4, 5
    drawn = [draw_focus(mask, cat, [0] * 5 + [1], STUFF, (4, 8), Random(seed)) for seed in range(300)]
    stuff = sum(focus.scale is None for focus in drawn)
    assert 120 < stuff < 180  # one of two classes: the third is a crowd
    assert len({focus.pixel for focus in drawn if focus.scale}) == 3
    one = [draw_focus(mask, cat, [0] * 6, STUFF, (4, 8), Random(seed), 3) for seed in range(20)]
    assert all(focus.pixel[0] >= 5 for focus in one)
    assert draw_focus(mask, [255], [0], STUFF, (4, 8), Random(0)) is None
    assert draw_focus(mask, [255, 1, 1, 1, 1, 1, 0], [0] * 7, STUFF, (4, 8), Random(0), 0) is None


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("streets"), [2, 1, 0, 3, 1, 2], [1])


def opened(root, transform=CROPS, **given) -> PanopticDataset:
    return PanopticDataset(root, "train", transform, 5, instances=InstanceOptions(**given))


def test_copy_paste_changes_only_what_is_pasted(streets):
    plain, pasted = opened(streets), opened(streets, copy_paste=0.5)
    changed = 0
    for epoch in range(4):
        for index in range(6):
            a, b = plain[SampleIndex(epoch, index, index)], pasted[SampleIndex(epoch, index, index)]
            assert a["img"].shape == b["img"].shape
            same = (a["img"] == b["img"]).all(0)
            classes = [item["cat"][item["msk"][0]] for item in (a, b)]
            assert torch.equal(classes[0][same & (classes[1] != 2)], classes[1][same & (classes[1] != 2)])
            assert (classes[1][~same] == 2).all()
            for i, box in enumerate(b["bbx"].tolist()):
                rows, columns = (b["msk"][0] == i).nonzero(as_tuple=True)
                if len(rows):
                    assert box == [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
            changed += int((~same).any())
    assert 3 < changed < 20
    always = opened(streets, copy_paste=1)
    assert all(2 in always[i]["cat"] for i in range(6))


def test_an_image_is_not_pasted_onto_itself(tmp_path):
    """The only other image with things is the source; without another one there is none."""
    root = make_dataset(tmp_path / "two", [1, 0, 1], [1])
    things = [(opened(root)[i]["img"], opened(root, copy_paste=1)[i]) for i in (0, 2)]
    for plain, item in things:
        assert not torch.equal(plain, item["img"])
    alone = make_dataset(tmp_path / "one", [1, 0], [1])
    pasted = False
    for epoch in range(5):
        key = SampleIndex(epoch, 0, 0)
        assert torch.equal(opened(alone)[key]["img"], opened(alone, copy_paste=1)[key]["img"])
        pasted |= 2 in opened(alone, copy_paste=1)[SampleIndex(epoch, 1, 1)]["cat"]
    assert pasted


def test_the_source_is_flipped_for_itself(tmp_path):
    root = make_dataset(tmp_path, [0, 0, 1], [1])
    flip = TrainTransform(64, 1000, augmentation=AugmentationOptions(random_flip=True), on_device=True)
    data = opened(root, flip, copy_paste=1)
    _, x0, _, x1 = opened(root, TrainTransform(64, 1000))[2]["bbx"][3].tolist()
    found = set()
    for epoch in range(20):
        item = data[SampleIndex(epoch, 0, 0)]
        _, left, _, right = item["bbx"][3].tolist()
        found.add((left, right))
        assert (item["img"][0, item["msk"][0] == 3] > 200).all()
    assert found == {(x0, x1), (96 - x1, 96 - x0)}
    assert x0 + x1 != 96


def test_samples_depend_neither_on_order_nor_on_workers(streets):
    given = {"scale_uniform": (8, 40), "copy_paste": 0.7}
    data = opened(streets, **given)
    keys = [SampleIndex(epoch, image, slot) for epoch in (0, 3) for image in range(6) for slot in (image, 5 - image)]
    first = {key: data[key] for key in keys}
    again = opened(streets, **given)
    for key in reversed(keys):
        for name, value in again[key].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, first[key][name])
    assert len({float(first[key]["img"].sum()) for key in keys}) == len(keys)

    batches = []
    for workers in (0, 2):
        sampler = DistributedARBatchSampler(data.img_sizes, 2, seed=5)
        loader = train_loader(data, sampler, LoaderOptions(num_workers=workers, class_uniform=0.5, seed=5))
        batches.append(list(loader))
    for a, b in zip(*batches, strict=True):
        assert a.ids == b.ids
        for name in ("images", "masks", "boxes", "categories"):
            assert all(torch.equal(x, y) for x, y in zip(getattr(a, name), getattr(b, name), strict=True))


def test_the_class_of_class_uniform_sampling_is_in_the_crop(streets):
    transform = TrainTransform(64, 1000, augmentation=AugmentationOptions(True, (0.5, 3), (24, 30)))
    data = opened(streets, transform, scale_uniform=(12, 24))
    for epoch in range(10):
        assert 2 in data[SampleIndex(epoch, 3, 0, 2)]["cat"]
    assert not all(2 in data[SampleIndex(epoch, 3, 0, 0)]["cat"] for epoch in range(10))


def test_transforms_on_the_device_and_fast_decoding_get_the_same_targets(streets):
    given = {"scale_uniform": (8, 40), "copy_paste": 1}
    here = opened(streets, **given)
    there = opened(streets, TrainTransform(64, 1000, augmentation=CROPS.augmentation, on_device=True), **given)
    fast = PanopticDataset(streets, "train", CROPS, 5, fast_decode=True, instances=InstanceOptions(**given))
    flips = set()
    for index in range(6):
        a, b, c = here[index], there[index], fast[index]
        flips.add(b["deferred"].flip)
        msk = b["msk"].flip(-1) if b["deferred"].flip else b["msk"]
        assert torch.equal(a["msk"], msk.long())
        assert torch.equal(a["img"], c["img"])  # PNG files are always decoded at full size
        assert torch.equal(a["bbx"], c["bbx"])
    assert flips == {True, False}


def test_an_unreadable_source_is_replaced_or_refused(tmp_path):
    root = make_dataset(tmp_path, [1, 2, 0], [1])
    (root / "img" / "train1.png").write_bytes(b"no photo")
    given = {"instances": InstanceOptions(copy_paste=1)}
    strict, lenient = (
        PanopticDataset(root, "train", TrainTransform(64, 1000), replace_unreadable=on, **given) for on in (False, True)
    )
    failed = 0
    for epoch in range(6):
        key = SampleIndex(epoch, 2, 2)
        item = lenient[key]
        assert item["id"] == "train2"
        assert 2 in item["cat"]
        if item["unreadable"]:
            failed += 1
            assert item["unreadable"][0][0] == "train1"
            with pytest.raises(InputError, match=r"train1\.png"):
                strict[key]
        else:
            strict[key]
    assert 0 < failed < 6


@pytest.mark.parametrize("kind", ["panoptic", "instance_seg", "detection"])
def test_keys_of_the_configuration(streets, tmp_path, kind):
    keys = ["crop_size=(48, 64)", "random_scale=(0.1, 2)", "instance_scale_uniform=(8, 40)", "copy_paste=1"]
    weights = {"panoptic": 6, "instance_seg": 5, "detection": 4}[kind]
    overrides = [*(f"dataloader.{key}" for key in keys), f"optimizer.loss_weights={(1.0,) * weights}"]
    path = write_config(tmp_path / "a.ini")
    config = load_config(path, kind, [*overrides, f"general.kind={kind}"])
    batches = list(open_loader(config, streets, path, World(device=torch.device("cpu"))))
    assert sum(len(batch.ids) for batch in batches) == 6
    for batch in batches:
        for ids, cat, boxes in zip(batch.masks, batch.categories, batch.boxes):
            assert ids.max() + 1 == len(cat) == len(boxes)
            assert 2 in cat
            assert ids.shape[-2] <= 48
            assert ids.shape[-1] <= 64


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (["instance_scale_uniform=(8, 40)"], "instance_scale_uniform needs crop_size"),
        (
            ["instance_scale_uniform=(8, 40)", "crop_size=(32, 32)", "random_scale=(1, 2, 3)"],
            "instance_scale_uniform needs random_scale of two",
        ),
        (["instance_scale_uniform=(40, 8)"], r"instance_scale_uniform .* must be \(smallest, largest\)"),
        (["instance_scale_uniform=(0, 8)"], "instance_scale_uniform"),
        (["copy_paste=1.5"], "copy_paste"),
    ],
)
def test_bad_values_are_refused(tmp_path, keys, problem):
    with pytest.raises(InputError, match=problem) as error:
        check_training(load_config(write_config(tmp_path / "a.ini"), None, [f"dataloader.{key}" for key in keys]), "a")
    assert "\n" not in str(error.value)


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(InputError, match="instance_scale_uniform"):
        InstanceOptions((5, 4))
    with pytest.raises(InputError, match="copy_paste"):
        InstanceOptions(copy_paste=-1)
    with pytest.raises(InputError, match="copy_paste: no image of split train"):
        opened(make_dataset(tmp_path, [0, 0], [1]), copy_paste=0.5)
    with pytest.raises(ValueError, match="need a TrainTransform"):
        opened(tmp_path, lambda *parts: {}, copy_paste=0.5)


def test_large_scale_jitter():
    """A tenth to twice the size; crops of at most the given size, of which only the region is resized."""
    transform = TrainTransform(100, 400, augmentation=AugmentationOptions(random_scale=(0.1, 2), crop_size=(100, 100)))
    mask = np.ones((1, 100, 200), np.int32)
    factors = []
    for seed in range(100):
        params = transform.sample_params((100, 200), Random(seed))
        factors.append(params.size[0] / 100)
        item = transform(Image.new("RGB", (200, 100)), mask, [255, 0], [0, 0], Random(seed))
        assert item["img"].shape[1:] == (min(params.size[0], 100), min(params.size[1], 100))
    assert min(factors) < 0.2
    assert max(factors) > 1.8
