"""Images that fail between others, at any step: each is one line and exit code 1, and all others are done."""

import errno
import io
import json
import os
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from seamseg.inference.predictor import Predictor
from seamseg.predicting.source import Source
from seamseg.predicting.writers.predictions import CocoWriter
from seamseg.utils.errors import SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")


def photo(format: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (90, 150, 220)).save(buffer, format)
    return buffer.getvalue()


def header_of(width: int, height: int) -> bytes:
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
    for name in ("a.png", "new\nline.png", "esc\x1b[2J.png", os.fsdecode(b"caf\xe9.png")):
        (folder / name).write_bytes(photo())
    (folder / "wide.png").write_bytes(photo(size=(65_501, 1)))  # too long for a JPEG
    good = {"a", "new\nline", "esc\x1b[2J", "caf\udce9"}
    (folder / "ba\x1b[2Jd\n.png").write_bytes(b"bad")
    (folder / "dangling.jpg").symlink_to("nothing")
    return folder, good, [*bad, "ba\\x1b[2Jd .png", "dangling.jpg"]


@pytest.mark.parametrize(("formats", "workers"), [("overlay,coco,raw", 0), ("json,vistas,csv", 2)])
def test_each_bad_photo_is_a_line(
    formats: str, workers: int, micro_run: Path, tmp_path: Path, seamseg_main, capsys
) -> None:
    inputs, good, bad = write_folder(tmp_path)
    if "overlay" in formats:
        bad.append("wide.png: 65501 x 1 pixels do not fit into a JPEG, whose sides have at most 65500")
    else:
        good.add("wide")
    folder = tmp_path / "out"
    words = ("--format", formats, "--workers", workers, "--device", "cpu", "--quiet")
    for _ in range(2):  # the second run tries the bad ones again
        assert seamseg_main("predict", micro_run, inputs, folder, *words) == 1
        lines = capsys.readouterr().err.removesuffix("\n").split("\n")
        assert not [line for line in lines if len(line) > 800 or not line.startswith("skipped ")]
        for part in bad:
            assert sum(part in line for line in lines) == 1, (part, lines)
        assert len(lines) == len(bad)
    manifest = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()[1:]]
    done = {line["name"] for line in manifest if line["status"] == "ok"}
    assert done == good
    assert len(manifest) == len(good) + len(bad)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.startswith(".")]
    assert {folder / name for line in manifest for name in line.get("outputs", ())} <= set(files)


def run_with_error(main, model, tmp_path, where, error, *words):
    """Predict four images, of which the red one raises an error at a step; return the exit code."""
    for name in "abde":
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (48, 32), "red" if name == "d" else "green").save(tmp_path / "photos" / f"{name}.png")
    open_, start, write = Source.open, Predictor.start, CocoWriter.write

    def open_or_error(self):
        if where == "decoder" and self.name == "d":
            raise error
        return open_(self)

    def start_or_error(self, images, tiling=None):
        if where == "network" and any(image[0, 0, 0] == 255 for image in images):
            raise error
        return start(self, images, tiling)

    def write_or_error(self, source, *rest):
        if where == "format" and source.name == "d":
            raise error
        return write(self, source, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "open", open_or_error)
        patch.setattr(Predictor, "start", start_or_error)
        patch.setattr(CocoWriter, "write", write_or_error)
        words = ("--device", "cpu", "--quiet", "--format", "coco", *words)
        return main("predict", model, tmp_path / "photos", tmp_path / "out", *words)


def listed(tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[1:]]
    return "".join(line["name"] for line in lines if line["status"] == "ok")


@pytest.mark.parametrize(
    ("where", "error", "words", "message"),
    [
        ("decoder", StopIteration(), ("--workers", "0"), "cannot be decoded: StopIteration"),
        ("decoder", MemoryError("large"), ("--workers", "2"), "cannot be decoded: MemoryError: large"),
        ("network", RuntimeError("it\nburns"), ("--batch-size", "3"), "the network fails (RuntimeError: it burns)"),
        ("network", SeamsegError("head edge, e.py line 5: TypeError"), ("--workers", "0"), "head edge, e.py line 5"),
        ("format", MemoryError("full"), (), "its outputs cannot be made (MemoryError: full)"),
        ("format", PermissionError(errno.EACCES, "Permission denied"), ("--workers", "0"), "[Errno 13] Permission"),
    ],
)
def test_an_image_that_fails_is_a_line(micro_run, tmp_path, seamseg_main, capsys, where, error, words, message) -> None:
    for _ in range(2):
        assert run_with_error(seamseg_main, micro_run, tmp_path, where, error, *words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"skipped {tmp_path}/photos/d.png: {message}")
        assert listed(tmp_path) == "abe"
    assert run_with_error(seamseg_main, micro_run, tmp_path, "", None, *words) == 0
    assert listed(tmp_path) == "abde"


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("network", torch.AcceleratorError("CUDA error: device-side assert triggered"), "device-side assert"),
        ("format", OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_what_concerns_all_images_ends_the_run(
    micro_run, tmp_path, seamseg_main, capsys, where, error, message
) -> None:
    assert run_with_error(seamseg_main, micro_run, tmp_path, where, error, "--workers", "0") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"seamseg predict: {tmp_path}/photos/d.png: ")
    assert message in line
    assert run_with_error(seamseg_main, micro_run, tmp_path, "", None) == 0
    assert listed(tmp_path) == "abde"
