"""Preparation and batching of images."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from PIL import Image

from seamseg.config import default_config
from seamseg.inference import images as photos
from seamseg.inference.images import ImagePreparation, equal_size_batches
from seamseg.utils.errors import InputError


def config(shortest=64, longest=128):
    base = default_config()
    return replace(base, dataloader=replace(base.dataloader, shortest_size=shortest, longest_max_size=longest))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (64, 85)),  # an ordinary photo: as the original
        ((600, 200), (64, 192)),  # beyond longest_max_size, below 4 x shortest: as the original
        ((20000, 500), (6, 256)),  # a panorama: 4 x shortest
        ((500, 20000), (256, 6)),
        ((1, 1), (64, 64)),
        ((5000, 1), (1, 256)),
    ],
)
def test_network_size(size, expected):
    image = Image.new("RGB", size)
    assert photos.network_input(image, photos.input_size(config())).shape[:2] == expected


def test_sizes_and_pixels():
    size = photos.input_size(config(64, 1000), 32)
    assert (size.shortest_size, size.longest_max_size) == (32, 1000)
    for sizes in ((0, None), (64, 63), (64, -1)):
        with pytest.raises(InputError, match="network size"):
            photos.input_size(config(), *sizes)
    image = Image.new("RGB", (6, 4))
    kept, bare = (ImagePreparation(size, keep_rgb=keep)(image) for keep in (True, False))
    assert kept.size == (4, 6)
    assert kept.rgb.shape == (4, 6, 3)
    assert bare.rgb is None
    assert np.array_equal(kept.pixels, np.asarray(size.scale(image)))
    assert np.array_equal(kept.pixels, bare.pixels)
    assert kept.nbytes == kept.pixels.nbytes + 4 * 6 * 3


def test_batches_have_one_size_and_contain_all_items():
    rng = np.random.default_rng(0)
    items = [(i, np.empty((4, int(w), 3))) for i, w in enumerate(rng.choice([5, 5, 5, 6, 7, 8], 200))]
    batches = list(equal_size_batches(iter(items), 3, lambda item: item[1].shape))
    assert all(len(list(groupby(batch, key=lambda item: item[1].shape))) == 1 for batch in batches)
    assert max(map(len, batches)) == 3
    assert sorted(i for batch in batches for i, _ in batch) == list(range(200))


def test_few_items_wait():
    waiting, most = 0, 0

    def source():
        nonlocal waiting, most
        for width in range(1, 50):
            waiting += 1
            most = max(most, waiting)
            yield np.empty((4, width, 3))

    for batch in equal_size_batches(source(), 2, lambda image: image.shape):
        waiting -= len(batch)
    assert most <= 5


def test_waiting_photos_are_limited_by_their_bytes(monkeypatch):
    monkeypatch.setattr(photos, "WAITING_BYTES", 100)
    images = [np.zeros((4, width, 3)) for width in (4, 5, 6, 4)]
    items = list(zip((40, 40, 40, 200), images, strict=True))
    batches = equal_size_batches(iter(items), 8, lambda item: item[1].shape, lambda item: item[0])
    assert [[size for size, _ in batch] for batch in batches] == [[40], [40], [40], [200]]
    batches = equal_size_batches(iter(items[:2]), 8, lambda item: item[1].shape, lambda item: item[0])
    assert [[size for size, _ in batch] for batch in batches] == [[40], [40]]
