"""All kinds of image inputs, single and several."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import narrow_body

import seamseg
from seamseg.inference.images import PreparedImage, as_image, equal_size_batches
from seamseg.inference.result import Panoptic
from seamseg.utils.errors import InputError

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(RGB).permute(2, 0, 1)


@pytest.mark.parametrize(
    "photo",
    [
        RGB,
        RGB[::-1][::-1],
        Image.fromarray(RGB),
        Image.fromarray(RGB).convert("RGBA"),
        CHANNELS_FIRST,
        CHANNELS_FIRST / 255,
        CHANNELS_FIRST.double() / 255,
        (CHANNELS_FIRST / 255).requires_grad_(),
        (CHANNELS_FIRST / 255).half(),
    ],
    ids=itertools.count(),
)
def test_the_same_photo(photo):
    found = np.asarray(as_image(photo)).astype(int)
    assert np.abs(found - RGB).max() <= (getattr(photo, "dtype", None) == torch.float16)


@pytest.mark.parametrize("mode", ["L", "I;16", "I", "F", "LA", "RGBA", "P", "CMYK", "1"])
def test_images_of_every_kind_are_as_their_files(tmp_path, mode):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    wider = {"I;16": grey.astype(np.uint16) * 257, "I": grey.astype(np.int32), "F": grey.astype(np.float32)}
    image = Image.fromarray(wider[mode]) if mode in wider else Image.fromarray(grey).convert(mode)
    assert image.mode == mode
    image.save(tmp_path / "photo.tif")
    assert np.array_equal(np.asarray(as_image(image)), np.asarray(as_image(tmp_path / "photo.tif")))


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (np.zeros((4, 5, 3)), "(4, 5, 3) float64; values must be integers from 0 to 255"),
        (np.zeros((3, 4, 5), np.uint8), "the channels must come last"),
        (np.zeros((4, 5), np.uint8), "grey"),
        (np.zeros((2, 4, 5, 3), np.uint8), "in a list"),
        (np.zeros((4, 5, 4), np.uint8), "H x W x 3"),
        (torch.zeros(4, 5, 3), "3 x H x W"),
        (torch.zeros(2, 3, 4, 5), "list(tensor)"),
        (torch.zeros(3, 0, 5), "3 x H x W"),
        (torch.zeros(3, 4, 5, dtype=torch.int64), "torch.int64"),
        (torch.full((3, 4, 5), 200.0), "0 to 1, not normalised, this one has 200 to 200"),
        (torch.full((3, 4, 5), torch.nan), "nan"),
        (-torch.ones(3, 4, 5), "normalised"),
        (b"jpeg", "not bytes"),
        (None, "not NoneType"),
    ],
    ids=str,
)
def test_invalid_inputs(photo, message):
    with pytest.raises(InputError) as raised:
        as_image(photo)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("sizes", "batch_size", "expected"),
    [("", 2, []), ("aaab", 2, ["aa", "a", "b"]), ("abab", 4, ["a", "b", "a", "b"]), ("aaa", 1, ["a", "a", "a"])],
)
def test_batches_in_order(sizes, batch_size, expected):
    inputs = {"a": np.zeros((4, 4, 3)), "b": np.zeros((4, 5, 3))}
    images = (PreparedImage(inputs[name], (1, 1), source_image=Path(name)) for name in sizes)
    runs = equal_size_batches(images, batch_size, lambda image: image.pixels.shape, in_order=True)
    assert ["".join(str(image.source_image) for image in run) for run in runs] == expected


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
        assert np.array_equal(result.photo, np.asarray(image))
    assert model.predict([]) == []
    assert model.predict((small,))[0].size == (90, 40)
    # a buffer may be used again
    pixels = np.full((30, 40, 3), 90, np.uint8)
    result = model.predict(pixels)
    pixels[:] = 0
    assert (result.photo == 90).all()
    assert model.predict(pixels, keep_photo=False).photo is None


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
    with pytest.raises(InputError, match="no such image"):
        list(model.predict_iter([Image.new("RGB", (20, 20)), "missing.jpg"]))
    with pytest.raises(InputError, match="batch_size"):
        list(model.predict_iter([], batch_size=0))
