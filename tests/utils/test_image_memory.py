"""The memory of images: estimated from the header, refused above a budget."""

import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.bombs import lossless_webp, refusals

from seamseg.maps import images
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.images import open_image, open_mask, open_object_mask
from seamseg.maps.prepare.pairs import number_segments
from seamseg.utils.errors import UnreadableImage
from seamseg.utils.limits import IMAGE_MEMORY, inflate, memory_needed, open_pillow


def picture(mode: str, width: int = 31, height: int = 40) -> Image.Image:
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I", "F"):
        values = rng.integers(0, 60_000, (height, width))
        types = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
        return Image.fromarray((values / (60_000 if mode == "F" else 1)).astype(types[mode]))
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize("mode", ["L", "P", "I", "I;16", "1"])
def test_masks_in_bands(tmp_path, monkeypatch, mode):
    path = tmp_path / "a.tif"
    picture(mode).save(path)
    expected = np.asarray(picture(mode)).astype(np.int32)
    monkeypatch.setattr(images, "BAND_BYTES", 900)
    np.testing.assert_array_equal(open_mask(path), expected)


def test_object_masks(tmp_path):
    pixels = np.zeros((40, 31, 4), np.uint8)
    pixels[10:, 5:] = 3, 1, 0, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(open_object_mask(tmp_path / "a.png"), pixels[..., 3])
    pixels[30:, 5:, 0] = 4
    Image.fromarray(pixels).save(tmp_path / "b.png")
    with pytest.raises(UnreadableImage, match="both its colours and its alpha channel vary"):
        open_object_mask(tmp_path / "b.png")


@pytest.mark.parametrize(
    ("name", "size", "per_pixel", "expected"),
    [
        ("a.jpg", (320, 400), 7, 7),
        ("a.tif", (320, 400), 20, 20),
        ("a.webp", (320, 400), 7, 16),
        ("a.png", (165_500, 1), 7, 7),
    ],
)
def test_estimates(tmp_path, name, size, per_pixel, expected):
    Image.new("RGB", size).save(tmp_path / name)
    with open_pillow(tmp_path / name) as image:
        assert memory_needed(image, per_pixel) == expected * size[0] * size[1] + 800 * max(size)


def test_tiles_beyond_the_image(tmp_path):
    # width, height, bits, deflated, black is 0, one sample; one tile
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 30_000, 324: 200, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    (tmp_path / "a.tif").write_bytes(header.ljust(200, b"\0") + zlib.compress(b""))
    with pytest.raises(UnreadableImage, match=r"16 x 16 pixels of TIFF takes 8\.4 GB"):
        open_image(tmp_path / "a.tif")


def test_above_the_budget(tmp_path, monkeypatch):
    path = tmp_path / "a.webp"
    path.write_bytes(lossless_webp(16383, 12288))
    assert path.stat().st_size == 34
    with pytest.raises(
        UnreadableImage, match=r"12288 pixels of WEBP takes 3\.23 GB .* limit of 1\.5 GB; .*_MEMORY sets it"
    ):
        open_image(path)
    picture("RGB", 320, 400).save(tmp_path / "b.png")
    monkeypatch.setenv(IMAGE_MEMORY, "0.0005")
    with pytest.raises(UnreadableImage, match=r"takes 0\.00122 GB"):
        open_image(tmp_path / "b.png")


def test_indices_of_runs_take_little_memory():
    values = np.zeros((2048, 4096), np.int32)
    values[:, ::2] = 1
    classes = Metadata(1, 1, ["a", "b"], [(0, 0, 0), (1, 1, 1)], [0, 1])
    tracemalloc.start()
    found = number_segments(values, lambda value: (value, 0), classes)
    ids, cat = found.ids, found.cat
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(ids, values + 1)
    assert cat == [255, 0, 1]
    assert peak < 80 << 20


def test_inflated_data_are_held_once():
    size = 96 << 20
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    data = packer.compress(bytes(size)) + packer.flush()
    tracemalloc.start()
    content = inflate(data, size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert content == bytes(size)
    assert peak < 1.3 * size
    for wrong in (size - 1, size + 1):
        with pytest.raises(zlib.error, match="does not hold the stated"):
            inflate(data, wrong)


SETUP = """
from seamseg.maps.images import open_image, pixels_of
from seamseg.utils.process_settings import apply
apply()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by /proc")
def test_memory_of_the_largest_images(tmp_path: Path) -> None:
    size, exif = (16384, 12288), Image.Exif()
    exif[0x0112] = 6
    rgb = Image.new("RGB", size, (90, 120, 30))
    rgb.save(tmp_path / "rotated.jpg", exif=exif)
    rgb.save(tmp_path / "progressive.jpg", progressive=True)
    rgb.convert("CMYK").save(tmp_path / "cmyk.jpg")
    rgb.convert("RGBA").save(tmp_path / "rotated.png", exif=exif, compress_level=1)
    del rgb
    wide = Image.fromarray(np.full(size[::-1], 0.5, np.float32))
    wide.save(tmp_path / "float.tif", compression="tiff_adobe_deflate")
    Image.fromarray(np.full(size[::-1], 777, np.uint16)).save(tmp_path / "16.png")
    (tmp_path / "a.webp").write_bytes(lossless_webp(12000, 7700))
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    calls = {p.name: f"pixels_of(open_image({str(p)!r})).shape" for p in sorted(tmp_path.iterdir())}
    found = refusals(SETUP, calls["small.png"], list(calls.values()), timeout=300)
    for name, (message, growth) in zip(calls, found):
        assert message.startswith("accepted"), (name, message)
        assert growth * 2**20 < 1.5e9 * 4 / 3, (name, growth)


def test_an_invalid_budget_ends_a_command_at_once(monkeypatch, seamseg_main, capsys):
    monkeypatch.setenv(IMAGE_MEMORY, "many")
    assert seamseg_main("components") == 2
    assert capsys.readouterr().err == "seamseg components: SEAMSEG_IMAGE_MEMORY=many: must be a positive number of GB\n"
