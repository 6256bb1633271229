"""Sources and images that would fill the memory: refused in one line, with little of it, however small the file is."""

import io
import json
import re
import sys
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from PIL import Image, features
from support.bombs import MIB, refusals, state_sizes, zeros_zip
from support.png_streams import rgb_png

import seamseg
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.images import PHOTO_ENDINGS, image_size, open_image, open_mask
from seamseg.maps.prepare.class_file import read_class_list
from seamseg.maps.prepare.coco_instances import decode_segmentation
from seamseg.maps.prepare.merge import read_rules
from seamseg.maps.prepare.panoptic import load_json
from seamseg.maps.prepare.vistas import read_labels
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes
from seamseg.utils.limits import LimitedTarInfo, read_limited

SIZE = 64


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by /proc")
def test_memory_of_each_refusal(tmp_path: Path) -> None:
    hidden = state_sizes(zeros_zip(tmp_path / "all.zip", {"a.json": SIZE}), 1000)
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
    setup = """
from seamseg.maps.images import open_image
from seamseg.maps.prepare.archives import SourceTree, read_file
from seamseg.maps.prepare.panoptic import load_json
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.formats.metadata import Metadata
"""
    for (call, expected), (message, growth) in zip(cases.items(), refusals(setup, "load_json(Path('x'))", list(cases))):
        assert expected in message, (call, message)
        assert "\n" not in message
        assert growth < 48, f"{call}: {growth} MiB to refuse it"


@pytest.mark.parametrize(("kind", "size"), [(tarfile.XHDTYPE, -512), (tarfile.XGLTYPE, -7)], ids=["one", "all"])
def test_negative_sizes_in_tar_files(tmp_path: Path, kind: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-8194: `tarfile` reads the same header for ever, if an extended header gives a file such a size."""
    record = f"{len(str(size)) + 9} size={size}\n"
    header = member("x", len(record), kind).tobuf(tarfile.USTAR_FORMAT) + record.encode().ljust(512, b"\0")
    path = tmp_path / "a.tar"
    path.write_bytes(header + member("a.jpg", 9).tobuf(tarfile.USTAR_FORMAT) + bytes(10_240))
    left, read = iter(range(20)), LimitedTarInfo.frombuf
    monkeypatch.setattr(LimitedTarInfo, "frombuf", lambda *a: (next(left), read(*a))[1])
    problem = f"a file of {size} bytes, .*"
    with pytest.raises(tarfile.ReadError, match=problem), tarfile.open(path, tarinfo=LimitedTarInfo) as archive:
        list(archive)


def test_streams_are_read_in_blocks_to_the_limit(tmp_path: Path) -> None:
    """Memory is not reserved for the limit."""
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


def limited(data: bytes, limit: int, expected: int = 0) -> bytes:
    return read_limited(io.BytesIO(data), limit, "a", "file", expected)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "read", [load_json, read_rules, read_labels, read_class_list, read_coco_panoptic], ids=lambda read: read.__name__
)
def test_json_that_is_deep_or_large_is_one_line(tmp_path: Path, read) -> None:
    path = tmp_path / "x.json"
    for text in (DEEP, '{"a":' * 100_000, '{"categories": ' + DEEP):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert "nested too deep" in str(error.value)
    if read not in (load_json, read_coco_panoptic):
        path.write_text(json.dumps(["x" * (1 << 20)]))
        with pytest.raises(InputError, match="is larger than 1 MiB, the limit of a"):
            read(path)


@pytest.mark.parametrize("far", [1e3, 1e9, 1e18, float("nan"), float("inf")])
def test_polygons_far_away(far: float) -> None:
    with pytest.raises(InputError, match=r"^a: a corner is more than 160 pixels away"):
        decode_segmentation([[0, 0, far, 0, far, far]], (10, 10), "a")
    assert len(decode_segmentation([[-4, -4, 14, -4, 14, 14]], (10, 10), "a")[0])
    zigzag = [value for k in range(4000) for value in (k, 3000 * (k % 2))]
    with pytest.raises(InputError, match="its outline is longer than 4194304 pixels"):
        decode_segmentation([zigzag], (3000, 4000), "a")


@pytest.mark.parametrize("kind", ["EPS", "ICO"])
def test_formats_that_run_programs_or_decode_before_limits(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.png"
    Image.new("L", (16, 16)).save(path, kind)
    for read in (open_image, open_mask, image_size, read_id_png):
        with pytest.raises(InputError, match=r"not an image|cannot identify"):
            read(path)


def test_images_are_opened_in_one_place() -> None:
    package, call = Path(seamseg.__file__).parent, re.compile(r"(?<!, )Image\.open\(")
    calls = [path for path in package.rglob("*.py") for _ in call.findall(path.read_text(encoding="utf-8"))]
    assert calls == [package / "utils" / "limits.py"]


@pytest.mark.parametrize("name", [e for e in PHOTO_ENDINGS if e != ".avif" or features.check("avif")])
def test_the_documented_formats(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"a{name}"
    Image.new("RGB", (40, 30), (200, 10, 10)).save(path)
    assert (open_image(path).size, image_size(path)) == ((40, 30), (30, 40))
