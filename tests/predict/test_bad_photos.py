"""Bad photos of every kind between good ones: each is one line and exit code 1, and all others are done."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seamseg.utils.errors import one_line

pytestmark = pytest.mark.usefixtures("narrow")

MIB = 1 << 20
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
    "news.jpg": b"\x1c\x02\x00\x00\x02" * 4,
    "photos.jpg": b"PK\x03\x04" + bytes(99),
}
"""Contents that are no photos, by the name of the file."""


def write_folder(root: Path) -> tuple[Path, set[str], list[str]]:
    """A folder of photos; the names of the good ones, and a part of the line of each bad one."""
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
    bad += ["xxx.jpg", "ba\\x1b[2Jd .png", "dangling.jpg", "circle.jpg"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.jpg")
        bad.append("pipe.jpg")
    if os.geteuid():
        (folder / "closed.jpg").write_bytes(photo())
        (folder / "closed.jpg").chmod(0)
        bad.append("closed.jpg")
    return folder, good, bad


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
    """A tar file of photos; see :func:`write_folder`."""
    good, bad, parts = set(), [], []
    for number, (name, content) in enumerate(CONTENTS.items()):
        parts += [member(f"{number}.png", photo()), member(name, content)]
        good.add(f"{number}")
        bad.append(name)
    named = {
        "/abs.png": "abs",
        "../../up.png": "up",
        "twice.png": "twice",
        "./twice.png": "twice.png",
        "twice.jpg": "twice.jpg",
        "esc\x1b[2J.png": "esc\x1b[2J",
        "caf\udce9.png": "caf\udce9",
        "c:\\x.png": "c:\\x",
        "zz.png": "zz",
        "zz.jpg/b.png": "zz.jpg/b",
    }
    parts += [member(name, photo()) for name in named]
    good |= set(named.values())
    wrong = {
        f"{LONG}xxxxx.png": "xxx.png",
        f"{'d/' * 1500}deep.png": "deep.png",
        "b" * 40_000 + ".png": "bbb.png",
        "nul\0name.png": "nul\\x00name.png",
    }
    parts += [member("x", photo(), pax={"path": name}) for name in wrong]
    bad += wrong.values()
    for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        parts.append(member(f"kind{kind.decode()}.png", type=kind, linkname="0.png"))
        bad.append(f"kind{kind.decode()}.png")
    parts += [member("folder.png", type=tarfile.DIRTYPE), member("last.png", photo())]
    maps = ({"GNU.sparse.size": "9999999", "GNU.sparse.numblocks": "0"}, {"GNU.sparse.map": "0,1", "size": "4"})
    maps += ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "999999999999"},)
    parts += [member(f"sparse{k}.png", b"0\n0\n", pax=pax) for k, pax in enumerate(maps)]
    parts += [sparse("sparse3.png"), member("end.png", photo()), member("cut.png", photo())[:560]]
    path = root / "part.tar"
    path.write_bytes(b"".join(parts))
    return (
        path,
        {f"part/{name}" for name in good | {"last", "end"}},
        [*bad, *(f"sparse{k}" for k in range(4)), "broken"],
    )


def video() -> bytes:
    """A video of three frames whose title is no UTF-8."""
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for value in (20, 120, 220):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), value, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue().replace(b"TITLE", b"\xff\xe9\xe8\xff\xff")


def write_list(root: Path) -> tuple[Path, set[str], list[str]]:
    """A list of photos, shards, videos, and names that are none; see :func:`write_folder`."""
    random.seed(0)
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz") as archive:
        for name, content in (("good.png", photo()), ("zeros.png", bytes(17 * MIB)), ("again.png", photo())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    good, bad = {"bomb/good", "bomb/again", "cut/0", "x", "y"}, ["zeros.png"]
    (root / "bomb.tgz").write_bytes(bomb.getvalue())
    (root / "cut.tar").write_bytes(member("0.png", photo()) + member("1.png", photo())[:560])
    (root / "noise.tar").write_bytes(random.randbytes(5000))
    (root / "text.tar").write_text("no tar file")
    longer = member("././@LongLink", b"name\0", type=tarfile.GNUTYPE_LONGNAME)
    (root / "deep.tar").write_bytes(longer * 2000 + member("x", photo()))
    (root / "empty.tar").write_bytes(b"")
    (root / "x.png").write_bytes(photo())
    (root / "y.png").write_bytes(photo())
    (root / "dir.png").mkdir()
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        archive.writestr("0.png", photo())
    drive = video()
    (root / "drive.mp4").write_bytes(drive)
    (root / "half.mp4").write_bytes(drive[: len(drive) // 2])
    (root / "text.mp4").write_text("no video")
    good |= {f"drive/frame_{number:06}" for number in range(3)}
    bad += ["half.mp4", "text.mp4"]
    lines = [
        "x.png",
        "drive.mp4",
        "half.mp4",
        "text.mp4",
        "bomb.tgz",
        "cut.tar",
        "noise.tar",
        "text.tar",
        "empty.tar",
        "none.tar",
        "deep.tar",
        "dir.png",
        "photos.zip",
    ]
    bad += [*("cut.tar", "noise.tar", "text.tar", "empty.tar", "none.tar", "deep.tar"), *("dir.png", "photos.zip")]
    odd = {
        "n" * 5000 + ".png": "nnn.png",
        "nul\0.png": "nul\\x00.png",
        "no\0/a.tar": "no\\x00",
        "s/" * 3000 + "x.png": "s/x",
    }
    odd |= {
        "no://where/x.png": "no://where",
        "/dev/null": "/dev/null",
        "none.mp4": "none.mp4",
        "\x1b[2J.png": "\\x1b[2J.png",
    }
    lines += [*odd, "y.png"]
    bad += odd.values()
    (root / "list.txt").write_text("\n".join(lines))
    return root / "list.txt", good, bad


TO_FOLDER, TO_SHARDS = ("out", "overlay,coco,raw", 0), ("out/p-%d.tar", "overlay,coco,raw", 2)
OTHERS = [
    (write_folder, "out", "cvat,vistas,labelstudio", 2),
    pytest.param(write_shard, "out", "cvat", 0, marks=pytest.mark.slow),
    (write_shard, "memory://bucket/out", "coco,raw", 0),
]


@pytest.mark.parametrize(
    ("write", "target", "formats", "workers"),
    [
        *((write, *TO_FOLDER) for write in (write_folder, write_shard, write_list)),
        (write_shard, *TO_SHARDS),
        *(pytest.param(write, *TO_SHARDS, marks=pytest.mark.slow) for write in (write_folder, write_list)),
        *OTHERS,
    ],
)
def test_each_bad_photo_is_a_line(
    write: Callable[[Path], tuple[Path, set[str], list[str]]],
    target: str,
    formats: str,
    workers: int,
    micro_run: Path,
    tmp_path: Path,
    memory: object,
    seamseg_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs, good, bad = write(tmp_path)
    if "cvat" in formats:  # its list has a name a line, in UTF-8
        unlisted = {name for name in good if not name.isascii() or "\n" in name}
        good, bad = good - unlisted, [*bad, *(one_line(Path(name).name) for name in unlisted)]
    # an overlay is a file where that of another photo needs a folder: one of the two is done
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
    folder = Path(out).parent if out.endswith(".tar") else Path(out)
    if out.startswith("memory"):
        memory.get("bucket/out", str(tmp_path / "copy"), recursive=True)
        folder = tmp_path / "copy"
    manifest = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()[1:]]
    here = f"{tmp_path.relative_to('/')}/"  # before the names of a list with an absolute path
    done = {line["name"].removeprefix(here) for line in manifest if line["status"] == "ok"}
    assert len(done & clash) == bool(clash)
    assert done | clash == good
    assert len(manifest) == len(good) + len(bad)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.startswith(".")]
    if not out.endswith(".tar"):
        listed = {str(folder / name) for line in manifest for name in line.get("outputs", ())}
        assert listed <= set(map(str, files))
        others = {path.name for path in files if str(path) not in listed and "masks" not in path.parts}
        assert others <= {
            "predictions.jsonl",
            "panoptic.json",
            "labelmap.txt",
            "default.txt",
            "classes.json",
            "label_config.xml",
        }
