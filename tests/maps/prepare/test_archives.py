"""Files in zip files are read like unpacked ones, and damage is reported."""

import zipfile

import numpy as np
import pytest
from support.source_files import photo, picture, zip_of

from seamseg.maps.prepare.archives import SourceTree
from seamseg.utils.errors import InputError


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "source"
    photo(root / "a" / "b" / "x.png", (8, 12), 7)
    picture(root / "a" / "m.png", np.arange(96).reshape(8, 12) * 500, np.uint16)
    (root / "top.txt").write_text("text" * 100)
    return root


def packed(source, tmp_path, kind):
    folder = tmp_path / kind
    folder.mkdir()
    zip_of(source, folder / "all.zip", zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED)
    return folder


@pytest.mark.parametrize(("coding", "flag"), [("utf-8", 0), ("utf-8", 1 << 11), ("cp437", 0)])
def test_names_in_zip_files(coding, flag, tmp_path):
    """Info-ZIP stores UTF-8 without the flag."""
    name = "Straße ü.txt"
    raw = name.encode(coding)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("x" * len(raw), "text")
    data = bytearray((tmp_path / "all.zip").read_bytes().replace(b"x" * len(raw), raw))
    for header, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.index(header) + at
        data[start : start + 2] = flag.to_bytes(2, "little")
    (tmp_path / "all.zip").write_bytes(data)
    assert SourceTree(tmp_path).file(name).read_bytes() == b"text"


def test_files_on_disk_take_precedence_over_archives(source, tmp_path):
    root = packed(source, tmp_path, "deflated")
    (root / "a").mkdir()
    (root / "a" / "m.png").write_bytes(b"disk")
    (root / "a" / "n.png").write_bytes(b"disk")
    (root / "._all.zip").write_bytes(b"of a Mac, no archive")
    found = SourceTree(root)
    assert list(found.files("a")) == ["m.png", "n.png"]
    assert found.file("a/m.png") == root / "a" / "m.png"
    assert found.files("a")["m.png"] == root / "a" / "m.png"
    assert found.folders("a") == ["b"]


def test_damaged_archives(source, tmp_path):
    root = packed(source, tmp_path, "stored")
    member = SourceTree(root).file("top.txt")
    data = bytearray((root / "all.zip").read_bytes())
    data[data.index(b"texttext") + 3] ^= 1
    for content, reason in (
        (data, r"all\.zip/top\.txt: the archive is damaged \(wrong checksum\)"),
        (bytes(member.offset + 40), "the archive is damaged"),
    ):
        (root / "all.zip").write_bytes(content)
        with pytest.raises(InputError, match=reason):
            member.read_bytes()
    (root / "all.zip").write_bytes(data[:-30])
    with pytest.raises(InputError, match="not a zip file, or a truncated one"):
        SourceTree(root)
    (root / "all.zip").unlink()
    with pytest.raises(InputError, match="cannot be unpacked"):
        member.read_bytes()
    zip_of(source, root / "all.zip", zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match="encrypted or packed in an unusual way; unpack the archive"):
        SourceTree(root)
