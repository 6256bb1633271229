"""Images: all kinds of inputs, single and several, and their preparation and batching."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import narrow_body
from torchvision.transforms.v2 import functional

import seamseg
from seamseg.config import default_config
from seamseg.data.input_size import InputSize
from seamseg.inference import images as photos
from seamseg.inference.images import as_image, equal_size_batches
from seamseg.inference.options import InferenceOptions
from seamseg.results import Panoptic
from seamseg.utils.errors import InputError, UnreadableImage

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(RGB).permute(2, 0, 1)


@pytest.mark.parametrize(
    "photo",
    [
        RGB[::-1][::-1],
        Image.fromarray(RGB),
        CHANNELS_FIRST,
        (CHANNELS_FIRST / 255).requires_grad_(),
        (CHANNELS_FIRST / 255).half(),
    ],
    ids=itertools.count(),
)
def test_the_same_photo(photo):
    found = np.asarray(as_image(photo)).astype(int)
    assert np.abs(found - RGB).max() <= (getattr(photo, "dtype", None) == torch.float16)


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (np.zeros((4, 5, 3)), "H x W x 3 uint8 RGB, this one is (4, 5, 3) float64"),
        (np.zeros((3, 4, 5), np.uint8), "this one is (3, 4, 5) uint8"),
        (torch.zeros(4, 5, 3), "3 x H x W"),
        (torch.zeros(3, 4, 5, dtype=torch.int64), "torch.int64"),
        (torch.full((3, 4, 5), 1.5), "0 to 1, not normalised, this one has 1.5 to 1.5"),
        (torch.full((3, 4, 5), -0.5), "this one has -0.5 to -0.5"),
        (torch.full((3, 4, 5), torch.nan), "nan"),
        (b"jpeg", "not bytes"),
    ],
    ids=str,
)
def test_invalid_inputs(photo, message):
    with pytest.raises(InputError) as raised:
        as_image(photo)
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def model(micro_run):
    with narrow_body():
        return seamseg.load(micro_run, device="cpu")


def test_many_kinds_in_order(model, micro):
    path = micro / "img" / "val0.png"
    image = Image.open(path).convert("RGB")
    small = image.resize((40, 90))
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    results = model.predict([path, small, str(path), np.array(image), tensor, tensor / 255], batch_size=3)
    assert [r.size for r in results] == [(64, 96), (90, 40)] + [(64, 96)] * 4
    alone = model.predict(path)
    assert isinstance(alone, Panoptic)
    for result in (results[0], *results[2:]):
        assert (result.id_map != alone.id_map).mean() < 0.01
        assert np.array_equal(result.image, np.asarray(image))
    assert model.predict([]) == []
    # a buffer may be used again
    pixels = np.full((30, 40, 3), 90, np.uint8)
    result = model.predict(pixels)
    pixels[:] = 0
    assert (result.image == 90).all()
    assert model.predict(pixels, keep_image=False).image is None


def test_photos_are_read_lazily(model, micro):
    taken = []

    def stream():
        for k in range(100):
            taken.append(k)
            yield Image.new("RGB", (20, 20))

    results = model.predict_iter(stream(), batch_size=2)
    assert taken == []
    next(results)
    assert taken == [0, 1]
    for name, reason in (("missing.jpg", "no such image"), (".", "folder")):
        with pytest.raises(UnreadableImage, match=reason):
            list(model.predict_iter([Image.new("RGB", (20, 20)), name]))
    with pytest.raises(InputError, match="batch_size"):
        list(model.predict_iter([], batch_size=0))


def config(shortest=64, longest=128):
    base = default_config()
    return replace(base, dataloader=replace(base.dataloader, shortest_size=shortest, longest_max_size=longest))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (64, 85)),  # an ordinary image: as the original
        ((600, 200), (64, 192)),  # beyond longest_max_size, below 4 x shortest: as the original
        ((20000, 500), (6, 256)),  # a panorama: 4 x shortest
        ((1, 1), (64, 64)),
        ((5000, 1), (1, 256)),
    ],
)
def test_network_size(size, expected):
    image = Image.new("RGB", size)
    assert photos.network_input(image, InferenceOptions().input_size(config())).shape[:2] == expected


def test_sizes():
    size = InferenceOptions(shortest_size=32).input_size(config(64, 1000))
    assert (size.shortest_size, size.longest_max_size) == (32, 1000)
    for shortest, longest in ((0, None), (64, 63), (64, -1)):
        with pytest.raises(InputError, match="network size"):
            InferenceOptions(shortest_size=shortest, longest_max_size=longest).input_size(config())
    preview = InferenceOptions(preview=True)
    assert preview.input_size(config(64, 1000)) == InputSize(32, 500)
    assert preview.thresholds(config()).min_stuff_area == config().general.min_stuff_area // 4


def test_batches_have_one_size_and_contain_all_items():
    """And few items wait for others of their size."""
    widths = np.random.default_rng(0).choice([5, 5, 5, 6, 7, 8], 200).tolist() + list(range(9, 50))
    taken, given, most = [], [], 0

    def source():
        for item in enumerate(widths):
            taken.append(item)
            yield item

    for batch in equal_size_batches(source(), 3, lambda item: item[1]):
        most = max(most, len(taken) - len(given))
        assert len(batch) <= 3
        assert len({width for _, width in batch}) == 1
        given += batch
    assert sorted(given) == taken
    assert most == 7


@pytest.mark.parametrize(
    ("sizes", "size", "expected"), [("aaab", 2, "aa a b"), ("abab", 4, "a b a b"), ("aa", 1, "a a")]
)
def test_batches_in_order(sizes, size, expected):
    assert [*map("".join, equal_size_batches(sizes, size, str, in_order=True))] == expected.split()


def test_waiting_photos_are_limited_by_their_bytes(monkeypatch):
    monkeypatch.setattr(photos, "WAITING_BYTES", 100)
    monkeypatch.setattr(photos, "ALONE_PIXELS", 50)
    images = [np.zeros((4, width, 3)) for width in (4, 5, 6, 4)]
    items = list(zip((40, 40, 21, 130), images, strict=True))
    batches = equal_size_batches(iter(items), 8, lambda item: item[1].shape, lambda item: item[0])
    assert [[size for size, _ in batch] for batch in batches] == [[40], [40], [21], [130]]
    batches = equal_size_batches(iter(items[:2]), 8, lambda item: item[1].shape, lambda item: item[0])
    assert [[size for size, _ in batch] for batch in batches] == [[40], [40]]


def test_a_kept_image_is_the_input_if_it_has_its_pixels():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    for size, nbytes in ((InputSize(), 192), (InputSize(16, crop=(8, 8)), 2 * 192)):
        prepared = photos.prepare_image(image, size, keep_rgb=True)
        assert np.array_equal(prepared.rgb, np.asarray(image))
        assert prepared.nbytes == nbytes
    for crop in ((2, 4), (9, 10)):
        found = photos.network_input(Image.fromarray(RGB), InputSize(crop=crop))
        assert np.array_equal(found, functional.center_crop(Image.fromarray(RGB), crop)), "the middle"
    with pytest.raises(InputError, match=r"49000 x 12250 pixels, above the limit of 268 million: .*`shortest_size`"):
        photos.network_input(Image.new("RGB", (4, 1)), InputSize(12250))
