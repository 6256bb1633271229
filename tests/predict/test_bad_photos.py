"""Bad images of every kind between good ones: each is one line and exit code 1, and all others are done."""

from __future__ import annotations

import io
import json
import os
import tarfile
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


def member(name: str, content: bytes = b"", **fields: object) -> bytes:
    """A file of a tar file; `pax` are its extended headers."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, "pax_headers" if key == "pax" else key, value)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % 512)


def sparse(name: str) -> bytes:
    """A sparse file as old GNU tars write it, with an extension header."""
    header = bytearray(member(name, b"1234", type=tarfile.GNUTYPE_SPARSE)[:512])
    header[257:265] = b"ustar  \0"
    header[345:] = bytes(167)
    header[386:410] = b"%011o\0" % (1 << 20) + b"%011o\0" % 4
    header[482] = 1
    header[483:495] = b"%011o\0" % (1 << 20)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(512) + b"1234" + bytes(508)


def write_shard(root: Path) -> tuple[Path, set[str], list[str]]:
    """A tar file of images; see :func:`write_folder`."""
    good, bad, parts = set(), list(CONTENTS), []
    for number, (name, content) in enumerate(CONTENTS.items()):
        parts += [member(f"{number}.png", photo()), member(name, content)]
        good.add(f"{number}")
    named = {
        "/abs.png": "abs",
        "../../up.png": "up",
        "twice.png": "twice",
        "./twice.png": "twice.png",
        "esc\x1b[2J.png": "esc\x1b[2J",
        "caf\udce9.png": "caf\udce9",
    }
    parts += [member(name, photo()) for name in named]
    good |= set(named.values())
    wrong = {f"{LONG}xxxxx.png": "xxx.png", "nul\0name.png": "nul\\x00name.png"}
    parts += [member("x", photo(), pax={"path": name}) for name in wrong]
    bad += wrong.values()
    parts += [member("link.png", type=tarfile.SYMTYPE, linkname="0.png"), member("folder.png", type=tarfile.DIRTYPE)]
    parts += [sparse("sparse.png"), member("end.png", photo()), member("cut.png", photo())[:560]]
    path = root / "part.tar"
    path.write_bytes(b"".join(parts))
    return path, {f"part/{name}" for name in good | {"end"}}, [*bad, "link.png", "sparse.png", "broken"]


@pytest.mark.parametrize(
    ("write", "target", "formats", "workers"),
    [
        (write_folder, "out", "overlay,coco,raw", 0),
        (write_folder, "out", "cvat,vistas,labelstudio", 2),
        (write_shard, "memory://bucket/out", "coco,raw", 0),
    ],
)
def test_each_bad_photo_is_a_line(
    write, target: str, formats: str, workers: int, micro_run: Path, tmp_path: Path, memory, seamseg_main, capsys
) -> None:
    inputs, good, bad = write(tmp_path)
    if "cvat" in formats:  # its list has a name a line, in UTF-8
        unlisted = {name for name in good if not name.isascii() or "\n" in name}
        good, bad = good - unlisted, [*bad, *(one_line(Path(name).name) for name in unlisted)]
    # an overlay is a file where that of another image needs a folder: one of the two is done
    clash = {name for name in good if target == "out" and "overlay" in formats and name.endswith(("zz", "zz.jpg/b"))}
    out = target if "://" in target else str(tmp_path / target)
    words = ("--format", formats, "--workers", workers, "--device", "cpu", "--quiet")
    for _ in range(2 if target == "out" else 1):  # the second run tries the bad ones again
        assert seamseg_main("predict", micro_run, inputs, out, *words) == 1
        lines = capsys.readouterr().err.removesuffix("\n").split("\n")
        assert not [line for line in lines if len(line) > 800 or not line.startswith("skipped ")]
        for part in bad:
            assert sum(part in line for line in lines) == 1, (part, lines)
        assert len(lines) == len(bad) + bool(clash)
    folder = Path(out)
    if out.startswith("memory"):
        memory.get("bucket/out", str(tmp_path / "copy"), recursive=True)
        folder = tmp_path / "copy"
    manifest = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()[1:]]
    done = {line["name"] for line in manifest if line["status"] == "ok"}
    assert len(done & clash) == bool(clash)
    assert done | clash == good
    assert len(manifest) == len(good) + len(bad)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.startswith(".")]
    assert {folder / name for line in manifest for name in line.get("outputs", ())} <= set(files)
