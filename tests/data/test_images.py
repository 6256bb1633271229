"""Images of every kind: the right pixels, or a one-line error."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image
from support.png_streams import rgb_png

from seamseg.maps import images
from seamseg.maps.images import SEVERAL_FRAMES, as_rgb, image_size, open_image, open_mask, open_reduced, pixels_of
from seamseg.utils.errors import UnreadableImage

RGB = np.random.RandomState(2).randint(0, 256, (13, 17, 3), dtype=np.uint8)
GREY = RGB[..., 0]


def pixels(path):
    image = open_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


def save(tmp_path, image, name="a.png", **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def png_16_bit_rgb(values):
    """Return a 16-bit RGB PNG, which Pillow cannot write."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return rgb_png(width, height, zlib.compress(rows), depth=16)


WIDE = GREY.astype(np.int32)
DEEP = GREY.astype(np.uint16)
SHARE = GREY.astype(np.float32) / 255
NOTHING = np.where(GREY[0, 0] == WIDE, np.nan, SHARE).astype(np.float32)


@pytest.mark.parametrize(
    ("array", "name", "expected"),
    [
        (RGB, "A.PNG", RGB),
        (GREY, "a.png", np.dstack([GREY] * 3)),
        (DEEP * 257, "a.png", GREY),
        (DEEP * 257, "a.tif", GREY),
        (np.full((4, 4), 200, np.uint16), "a.png", np.ones((4, 4))),
        (WIDE * 257, "a.tif", GREY),
        (SHARE, "a.tif", GREY),
        (NOTHING, "a.tif", np.where(GREY[0, 0] == WIDE, 0, GREY)),
        (np.dstack([RGB, GREY]), "a.png", RGB),
        (np.dstack([GREY, RGB[..., 1]]), "a.png", GREY),
    ],
)
def test_depths_and_channels(tmp_path, array, name, expected):
    """16 bits are scaled, not clipped; what is not a number is black; alpha is dropped."""
    found = pixels(save(tmp_path, Image.fromarray(array), name))
    assert np.array_equal(found if expected.ndim == 3 else found[..., 1], expected)


def test_deep_colours_cmyk_and_a_damaged_exif(tmp_path):
    deep = tmp_path / "deep.png"
    deep.write_bytes(png_16_bit_rgb(RGB.astype(np.uint16) * 257))
    for path in (deep, save(tmp_path, Image.fromarray(RGB), exif=b"Exif\0\0damaged")):
        assert np.array_equal(pixels(path), RGB)
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for name in ("a.jpg", "a.tif"):
        assert np.abs(pixels(save(tmp_path, red, name)).astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.filterwarnings("error")
def test_palette_with_transparency(tmp_path):
    image = Image.fromarray(GREY % 3, mode=None).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255] + [0] * 759)
    path = save(tmp_path, image, transparency=bytes([0, 128, 255]))
    assert np.array_equal(pixels(path), np.eye(3, dtype=np.uint8)[GREY % 3] * 255)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg", "a.webp"])
@pytest.mark.parametrize(
    ("orientation", "turned"), [(1, RGB), (4, RGB[::-1]), (5, RGB.transpose(1, 0, 2)), (8, np.rot90(RGB)), (77, RGB)]
)
def test_exif_orientation(tmp_path, orientation, turned, name):
    """Sizes are those of the upright image: Pillow 11 swaps the sides of a TIFF before it loads, Pillow 10 later."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, Image.fromarray(RGB), name, exif=exif, lossless=True)
    if name != "a.jpg":
        assert np.array_equal(pixels(path), turned)
    assert (pixels(path).shape, images.pixel_count(path)) == (turned.shape, 13 * 17)
    assert image_size(path) == image_size(name, path.read_bytes()) == turned.shape[:2]
    reduced, full = open_reduced(path, (turned.shape[0] // 2, turned.shape[1] // 2))
    assert full == turned.shape[:2]
    assert reduced.size[::-1] == (tuple((side + 1) // 2 for side in full) if name == "a.jpg" else full)
    lazy = as_rgb(Image.open(path))
    assert pixels_of(lazy).shape[:2] == lazy.size[::-1]


def test_the_first_of_several_frames(tmp_path, monkeypatch):
    """A preview beside the image, as of MPO, is not counted; counting takes no memory."""
    first, other, exif = Image.fromarray(RGB), Image.new("RGB", (17, 13)), Image.Exif()
    exif[0x0112] = 1
    for name in ("a.gif", "a.png", "a.webp", "a.tif", "a.mpo"):
        path = tmp_path / name
        first.save(path, save_all=True, append_images=[other], lossless=True, exif=exif)
        image = open_image(path)
        assert bool(image.info[SEVERAL_FRAMES]) == (name != "a.mpo")
        assert np.abs(np.asarray(image).astype(int) - RGB).mean() < (60 if name in ("a.gif", "a.mpo") else 1)
        with monkeypatch.context() as patch:
            patch.setenv("SEAMSEG_IMAGE_MEMORY", "1e-9")
            assert images.has_frames(path) == (name != "a.mpo")
        first.save(path, exif=exif)
        assert not open_image(path).info[SEVERAL_FRAMES]


@pytest.mark.filterwarnings("error")
def test_decompression_bomb(tmp_path):
    """Pillow neither warns of what is within the limit nor reads the other."""
    assert image_size(save(tmp_path, Image.new("1", (20000, 10000)))) == (10000, 20000)
    path = tmp_path / "bomb.png"
    path.write_bytes(rgb_png(15000, 15000, zlib.compress(b"\0" * 100)))
    with pytest.raises(UnreadableImage, match="limit of 201 megapixels"):
        open_image(path)


def test_masks(tmp_path):
    image = Image.fromarray(GREY % 7).convert("P")
    image.putpalette(list(range(255, -1, -1)) * 3)
    assert np.array_equal(open_mask(save(tmp_path, image)), GREY % 7)
    assert np.array_equal(open_mask(save(tmp_path, Image.fromarray(GREY > 99))), GREY > 99)
    with pytest.raises(UnreadableImage, match="single-channel"):
        open_mask(save(tmp_path, Image.fromarray(RGB)))
    with pytest.raises(UnreadableImage, match="negative"):
        open_mask(save(tmp_path, Image.fromarray(np.full((2, 2), -1, np.int32)), "m.tif"))
    # PNG ends at 16 bits; the content decides, not the ending
    long = np.array([[0, 1, 65535], [65536, 16_777_217, 2**31 - 1]], np.int32)
    wide = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    for ids, kind in ((GREY, "PNG"), (wide, "PNG"), (long, "TIFF")):
        Image.fromarray(ids).save(tmp_path / "m.png", format=kind)
        mask = open_mask(tmp_path / "m.png")
        assert mask.dtype == np.int32
        assert np.array_equal(mask, ids)


def test_masks_with_a_wrong_checksum():
    whole = io.BytesIO()
    Image.new("L", (13, 9), 1).save(whole, "PNG")
    damaged = bytearray(whole.getvalue())
    at = damaged.index(b"IDAT")
    damaged[at + 4 + int.from_bytes(damaged[at - 4 : at], "big")] ^= 1
    with pytest.raises(UnreadableImage, match=r"a\.png: corrupt image: the checksum of its IDAT chunk"):
        open_mask("a.png", bytes(damaged))
