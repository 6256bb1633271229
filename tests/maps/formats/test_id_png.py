"""PNGs of ids, of every kind: the same as by Pillow, or an error with the file name; PNGs of a mask in few bytes."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.png_streams import STRATEGIES, chunk, random_ids, stream_of

from seamseg.maps.formats import id_png
from seamseg.maps.formats.cityscapes.instance_files import mask_png
from seamseg.maps.formats.id_png import id_image, read_id_png, read_id_runs, write_id_png
from seamseg.utils.errors import InputError


def png(size, stream, header=(8, 2, 0, 0, 0), before=(), parts=1, after=()):
    """A file of these chunks; `stream` is cut into `parts`."""
    step = len(stream) // parts + 1
    data = [chunk(b"IDAT", stream[i : i + step]) for i in range(0, len(stream), step)]
    head = chunk(b"IHDR", struct.pack(">II5B", size[1], size[0], *header))
    return b"".join([b"\x89PNG\r\n\x1a\n", head, *before, *data, *after, chunk(b"IEND", b"")])


def read_by_pillow(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)


@pytest.fixture(params=["kernel", "pillow"])
def reader(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(id_png, "has_kernel", lambda: False)
    else:
        assert id_png.has_kernel()
    return request.param


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("png") / "x.png"


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 30)),
    st.sampled_from([1, 3, 8]),
    st.integers(0, 9),
    st.sampled_from(STRATEGIES),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_8_bit_rgb(path, size, run, level, strategy, parts, ancillary, seed):
    rng = np.random.default_rng(seed)
    ids = random_ids(rng, *size, run)
    stream = stream_of(ids, rng.integers(0, 5, size[0]), level, strategy)
    extra = {"before": [chunk(b"tEXt", b"a\0b"), chunk(b"tRNS", bytes(6))], "after": [chunk(b"tIME", bytes(7))]}
    path.write_bytes(png(size, stream, parts=parts, **(extra if ancillary else {})))
    found = read_id_png(path)
    assert np.array_equal(found, ids)
    assert np.array_equal(found, read_by_pillow(path))
    assert np.array_equal(read_id_runs(path).dense(), ids)


@given(st.sampled_from(["P", "L", "1", "RGBA"]), st.integers(1, 9), st.integers(1, 30), st.integers(0, 1000))
def test_other_modes(path, mode, height, width, seed):
    rng = np.random.default_rng(seed)
    rgba = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
    image = Image.fromarray(rgba if mode == "RGBA" else np.ascontiguousarray(rgba[..., :3]))
    image.convert(mode).save(path)
    assert np.array_equal(read_id_png(path), read_by_pillow(path))
    assert np.array_equal(read_id_runs(path).dense(), read_by_pillow(path))


def test_every_wrong_bit_and_every_cut_is_found(tmp_path, reader):
    path = tmp_path / "x.png"
    ids = random_ids(np.random.default_rng(0), 6, 11, 3)
    good = png((6, 11), stream_of(ids, [0, 1, 2, 3, 4, 2]), parts=2, after=[chunk(b"tIME", bytes(7))])
    path.write_bytes(good)
    assert np.array_equal(read_id_png(path), ids)
    for bit in range(8 * len(good)):
        wrong = bytearray(good)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=r"x\.png: (not a readable PNG|a panoptic PNG has three channels)"):
            read_id_png(path)
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(InputError, match=r"x\.png: not a readable PNG"):
            read_id_runs(path)


def test_broken_streams_and_two_headers(tmp_path, reader):
    path = tmp_path / "x.png"
    stream = stream_of(np.zeros((6, 11), np.uint32), [0] * 6)
    # Pillow takes the first header; a reader that takes the last makes a map of another size
    second = chunk(b"IHDR", struct.pack(">II5B", 4, 2, 8, 2, 0, 0, 0))
    for content, words in (
        (png((6, 11), b""), "not a readable PNG"),
        (png((2**31 - 1, 2**31 - 1), stream), "not a readable PNG"),
        (png((3, 4), zlib.compress(bytes(75)), (16, 2, 0, 0, 0)), "a panoptic PNG has three channels of 8 bits.*16"),
        (png((6, 11), stream, after=[second]), "not a readable PNG.*it has two headers"),
        (
            png((6, 11), stream).replace(b"IDAT", b"IDAT\1", 1),
            "not a readable PNG.*checksum of its IDAT chunk at byte 33",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"x\.png: {words}"):
            read_id_png(path)


@pytest.mark.parametrize(("size", "dtype"), [((1, 1), np.int64), ((7, 300), np.int32), ((300, 7), np.uint32)])
def test_written_and_read(tmp_path, size, dtype, reader):
    path = tmp_path / "deep" / "x.png"
    ids = random_ids(np.random.default_rng(3), *size, 4, 40).astype(dtype)
    ids[0, 0] = (1 << 24) - 1
    write_id_png(path, ids)
    assert list(path.parent.iterdir()) == [path]
    assert read_id_png(path).dtype == np.uint32
    assert np.array_equal(np.asarray(id_image(ids)) @ np.array([1, 256, 65536]), ids)
    assert np.array_equal(read_id_png(path), ids)
    assert np.array_equal(read_by_pillow(path), ids)


@settings(max_examples=60)
@given(st.data())
def test_masks_are_read_by_pillow(data):
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    rows, columns = data.draw(st.integers(0, height)), data.draw(st.integers(0, width))
    y, x = data.draw(st.integers(0, height - rows)), data.draw(st.integers(0, width - columns))
    crop = np.random.default_rng(data.draw(st.integers(0, 99))).random((rows, columns)) < 0.6
    expected = np.zeros((height, width), np.uint8)
    expected[y : y + rows, x : x + columns][crop] = 255
    with Image.open(BytesIO(mask_png(crop, (y, x), (height, width)))) as picture:
        assert picture.mode == "L"
        assert np.array_equal(np.array(picture), expected)


def test_masks_of_large_images_are_small_files():
    content = mask_png(np.ones((300, 500), bool), (511, 700), (2448, 3264))
    with Image.open(BytesIO(content)) as picture:
        assert np.count_nonzero(np.array(picture)[511:811, 700:1200] == 255) == np.count_nonzero(picture) == 300 * 500
    assert len(content) < 20_000
