"""Bad images of every kind between good ones: each is one line and exit code 1, and all others are done."""

from __future__ import annotations

import io
import json
import os
import zlib
from pathlib import Path

import pytest
from PIL import Image

from seamseg.utils.errors import one_line

pytestmark = pytest.mark.usefixtures("narrow")

LONG = "x" * 251
"""Stem of the longest name of a JPEG; that of the raw output is longer."""


def photo(format: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (90, 150, 220)).save(buffer, format)
    return buffer.getvalue()


def header_of(width: int, height: int) -> bytes:
    """A PNG that states a size."""
    small = photo()
    header = small[12:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + small[24:29]
    return small[:12] + header + zlib.crc32(header).to_bytes(4, "big") + small[33:]


CONTENTS = {
    "truncated.jpg": photo("JPEG")[:-200],
    "text.jpg": b"no image at all",
    "empty.jpg": b"",
    "huge.png": header_of(60_000, 60_000),
    "damaged.png": photo()[:48],
    "script.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}
"""Contents that are no images, by the name of the file."""


def write_folder(root: Path) -> tuple[Path, set[str], list[str]]:
    """A folder of images; the names of the good ones, and a part of the line of each bad one."""
    folder, bad = root / "photos", list(CONTENTS)
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    for name in ("a.png", "zz.png", "new\nline.png", "esc\x1b[2J.png", "dir.jpg/inner.png", "zz.jpg/b.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(photo())
    for name in (b"\xff\xfe.png", b"caf\xe9.png"):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(photo())
    good = {"a", "zz", "new\nline", "esc\x1b[2J", "dir.jpg/inner", "zz.jpg/b", "\udcff\udcfe", "caf\udce9"}
    (folder / f"{LONG}.jpg").write_bytes(photo())  # fits, but not its output
    (folder / "ba\x1b[2Jd\n.png").write_bytes(b"bad")
    (folder / "dangling.jpg").symlink_to("nothing")
    (folder / "circle.jpg").symlink_to("circle.jpg")
    os.mkfifo(folder / "pipe.jpg")
    return folder, good, [*bad, "xxx.jpg", "ba\\x1b[2Jd .png", "dangling.jpg", "circle.jpg", "pipe.jpg"]


@pytest.mark.parametrize(("formats", "workers"), [("overlay,coco,raw", 0), ("cvat,vistas,labelstudio", 2)])
def test_each_bad_photo_is_a_line(
    formats: str, workers: int, micro_run: Path, tmp_path: Path, seamseg_main, capsys
) -> None:
    inputs, good, bad = write_folder(tmp_path)
    if "cvat" in formats:  # its list has a name a line, in UTF-8
        unlisted = {name for name in good if not name.isascii() or "\n" in name}
        good, bad = good - unlisted, [*bad, *(one_line(Path(name).name) for name in unlisted)]
    # an overlay is a file where that of another image needs a folder: one of the two is done
    clash = {name for name in good if "overlay" in formats and name.endswith(("zz", "zz.jpg/b"))}
    folder = tmp_path / "out"
    words = ("--format", formats, "--workers", workers, "--device", "cpu", "--quiet")
    for _ in range(2):  # the second run tries the bad ones again
        assert seamseg_main("predict", micro_run, inputs, folder, *words) == 1
        lines = capsys.readouterr().err.removesuffix("\n").split("\n")
        assert not [line for line in lines if len(line) > 800 or not line.startswith("skipped ")]
        for part in bad:
            assert sum(part in line for line in lines) == 1, (part, lines)
        assert len(lines) == len(bad) + bool(clash)
    manifest = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()[1:]]
    done = {line["name"] for line in manifest if line["status"] == "ok"}
    assert len(done & clash) == bool(clash)
    assert done | clash == good
    assert len(manifest) == len(good) + len(bad)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.startswith(".")]
    assert {folder / name for line in manifest for name in line.get("outputs", ())} <= set(files)
