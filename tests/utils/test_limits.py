"""Sources and images that would fill the memory: refused in one line, with little of it, however small the file is."""

import io
import json
import re
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features
from support.bombs import MIB, lossless_webp, refusals, state_sizes, zeros_zip
from support.png_streams import rgb_png

import seamseg
from seamseg.maps import images
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.images import PHOTO_ENDINGS, image_size, open_image, open_mask, open_object_mask
from seamseg.maps.prepare.class_file import read_class_list
from seamseg.maps.prepare.coco_instances import decode_segmentation
from seamseg.maps.prepare.merge import read_rules
from seamseg.maps.prepare.panoptic import load_json
from seamseg.maps.prepare.vistas import read_labels
from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.files import read_bytes
from seamseg.utils.limits import IMAGE_MEMORY, inflate, read_limited

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by /proc")
SETUP = """
from seamseg.maps.images import open_image, pixels_of
from seamseg.maps.prepare.archives import SourceTree, read_file
from seamseg.maps.prepare.panoptic import load_json
from seamseg.maps.formats.id_png import read_id_png
from seamseg.utils.process import apply_settings
apply_settings()
"""


@pytest.mark.slow
@on_linux
def test_memory_of_each_refusal(tmp_path):
    hidden = state_sizes(zeros_zip(tmp_path / "all.zip", {"a.json": 64}), 1000)
    brackets = tmp_path / "brackets.json"
    brackets.write_text("[" + "[]," * (4 * MIB) + "[]]")
    photo = tmp_path / "60000.png"
    photo.write_bytes(rgb_png(60_000, 60_000, zlib.compress(bytes(8 * MIB), 1)))
    cases = {
        f"read_file(SourceTree({str(hidden)!r}).file('a.json'))": "cannot be unpacked: it does not hold",
        f"load_json(Path({str(brackets)!r}))": "4194306 lists and objects in 12 MiB, which no annotations have",
        f"open_image({str(photo)!r})": "60000 x 60000 pixels are above the limit of 201 megapixels",
        f"read_id_png({str(photo)!r})": "3600000000 pixels) exceeds limit",
    }
    for (call, expected), (message, growth) in zip(cases.items(), refusals(SETUP, "load_json(Path('x'))", list(cases))):
        assert expected in message, (call, message)
        assert "\n" not in message
        assert growth < 48, f"{call}: {growth} MiB to refuse it"


@pytest.mark.slow
@on_linux
def test_memory_of_the_largest_images(tmp_path):
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


def test_images_above_the_budget(tmp_path, monkeypatch):
    (tmp_path / "a.webp").write_bytes(lossless_webp(16383, 12288))
    message = r"12288 pixels of WEBP takes 3\.23 GB .* limit of 1\.5 GB; .*_MEMORY sets it"
    with pytest.raises(UnreadableImage, match=message):
        open_image(tmp_path / "a.webp")
    # width, height, bits, deflated, black is 0, one sample; one tile far larger than the image
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 30_000, 324: 200, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    (tmp_path / "a.tif").write_bytes(header.ljust(200, b"\0") + zlib.compress(b""))
    with pytest.raises(UnreadableImage, match=r"16 x 16 pixels of TIFF takes 8\.4 GB"):
        open_image(tmp_path / "a.tif")
    Image.new("RGB", (320, 400)).save(tmp_path / "b.png")
    monkeypatch.setenv(IMAGE_MEMORY, "0.0005")
    with pytest.raises(UnreadableImage, match=r"takes 0\.00122 GB"):
        open_image(tmp_path / "b.png")


def test_an_invalid_budget_ends_a_command_at_once(monkeypatch, seamseg_main, capsys):
    monkeypatch.setenv(IMAGE_MEMORY, "many")
    assert seamseg_main("components") == 2
    assert capsys.readouterr().err == "seamseg components: SEAMSEG_IMAGE_MEMORY=many: must be a positive number of GB\n"


@pytest.mark.parametrize("mode", ["L", "P", "I", "I;16", "1"])
def test_masks_in_bands(tmp_path, monkeypatch, mode):
    values = np.random.default_rng(0).integers(0, 200, (40, 31))
    if mode in ("I", "I;16"):
        picture = Image.fromarray((values * 300).astype(np.int32 if mode == "I" else np.uint16))
    else:
        picture = Image.fromarray(values.astype(np.uint8)).convert(mode)
    picture.save(tmp_path / "a.tif")
    monkeypatch.setattr(images, "BAND_BYTES", 900)
    np.testing.assert_array_equal(open_mask(tmp_path / "a.tif"), np.asarray(picture).astype(np.int32))


def test_object_masks(tmp_path):
    pixels = np.zeros((40, 31, 4), np.uint8)
    pixels[10:, 5:] = 3, 1, 0, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(open_object_mask(tmp_path / "a.png"), pixels[..., 3])
    pixels[30:, 5:, 0] = 4
    Image.fromarray(pixels).save(tmp_path / "b.png")
    with pytest.raises(UnreadableImage, match="both its colours and its alpha channel vary"):
        open_object_mask(tmp_path / "b.png")


def test_inflated_data_have_the_stated_size():
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    data = packer.compress(bytes(MIB)) + packer.flush()
    assert inflate(data, MIB) == bytes(MIB)
    for wrong in (MIB - 1, MIB + 1):
        with pytest.raises(zlib.error, match="does not hold the stated"):
            inflate(data, wrong)


def test_streams_are_read_in_blocks_to_the_limit(tmp_path):
    def limited(data, limit, expected=0):
        return read_limited(io.BytesIO(data), limit, "a", "file", expected)

    data = bytes(range(256)) * 40 * 1024  # 10 MiB
    (tmp_path / "a.json").write_bytes(data)
    for read in (lambda: read_bytes(tmp_path / "a.json", "file", 4096 * MIB), lambda: limited(data, 4096 * MIB)):
        tracemalloc.start()
        assert read() == data
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
        tracemalloc.stop()
    for expected in (0, len(data), 1 << 40):
        assert limited(data, len(data), expected) == data
        with pytest.raises(InputError, match="a: is larger than 10 MiB, the limit of a file"):
            limited(data + b"x", len(data), expected)


@pytest.mark.parametrize(
    "read", [load_json, read_rules, read_labels, read_class_list, read_coco_panoptic], ids=lambda read: read.__name__
)
def test_json_that_is_deep_or_large_is_one_line(tmp_path, read):
    path = tmp_path / "x.json"
    path.write_text('{"categories": ' + "[" * 100_000)
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}.*nested too deep[^\n]*$"):
        read(path)
    if read not in (load_json, read_coco_panoptic):
        path.write_text(json.dumps(["x" * (1 << 20)]))
        with pytest.raises(InputError, match="is larger than 1 MiB, the limit of a"):
            read(path)


@pytest.mark.parametrize("far", [1e3, 1e18, float("nan"), float("inf")])
def test_polygons_far_away(far):
    with pytest.raises(InputError, match=r"^a: a corner is more than 160 pixels away"):
        decode_segmentation([[0, 0, far, 0, far, far]], (10, 10), "a")
    assert len(decode_segmentation([[-4, -4, 14, -4, 14, 14]], (10, 10), "a")[0])
    zigzag = [value for k in range(4000) for value in (k, 3000 * (k % 2))]
    with pytest.raises(InputError, match="its outline is longer than 4194304 pixels"):
        decode_segmentation([zigzag], (3000, 4000), "a")


@pytest.mark.parametrize("kind", ["EPS", "ICO"])
def test_formats_that_run_programs_or_decode_before_limits(tmp_path, kind):
    path = tmp_path / "a.png"
    Image.new("L", (16, 16)).save(path, kind)
    for read in (open_image, open_mask, image_size, read_id_png):
        with pytest.raises(InputError, match=r"not an image|cannot identify"):
            read(path)


def test_images_are_opened_in_one_place():
    package, call = Path(seamseg.__file__).parent, re.compile(r"(?<!, )Image\.open\(")
    calls = [path for path in package.rglob("*.py") for _ in call.findall(path.read_text(encoding="utf-8"))]
    assert calls == [package / "utils" / "limits.py"]


def test_the_documented_formats(tmp_path):
    for ending in PHOTO_ENDINGS:
        if ending != ".avif" or features.check("avif"):
            path = tmp_path / f"a{ending}"
            Image.new("RGB", (40, 30), (200, 10, 10)).save(path)
            assert (open_image(path).size, image_size(path)) == ((40, 30), (30, 40))
