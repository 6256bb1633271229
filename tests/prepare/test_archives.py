"""Files in zip and tar archives are read like unpacked ones, and damage is reported."""

import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from support.source_files import photo, picture, zip_of

from seamseg.prepare.archives import ArchiveMember, SourceTree, fingerprint, photo_size, read_map, read_photo
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.utils.errors import InputError


@pytest.fixture
def source(tmp_path):
    """`a/b/x.png`, `a/m.png`, `top.txt`."""
    root = tmp_path / "source"
    photo(root / "a" / "b" / "x.png", (8, 12), 7)
    picture(root / "a" / "m.png", np.arange(96).reshape(8, 12) * 500, np.uint16)
    (root / "top.txt").write_text("text" * 100)
    return root


def packed(source, tmp_path, kind):
    folder = tmp_path / kind
    folder.mkdir()
    if kind == "tar":
        with tarfile.open(folder / "all.tar", "w") as file:
            file.add(source, arcname=".")
    else:
        zip_of(source, folder / "all.zip", zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED)
    return folder


@pytest.mark.parametrize("kind", ["stored", "deflated", "tar"])
def test_members(source, tmp_path, kind):
    root = packed(source, tmp_path, kind)
    found = SourceTree(root)
    assert found.folders("") == ["a"]
    assert found.folders("a") == ["b"]
    assert found.folders("x") == []
    assert list(found.files("a")) == ["m.png"]
    assert "top.txt" in found.files("")
    text, image, mask = (found.file(p) for p in ("top.txt", "a/b/x.png", "a/m.png"))
    assert isinstance(text, ArchiveMember)
    assert text.read_bytes() == (source / "top.txt").read_bytes()
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert (image.name, image.stem, image.suffix) == ("x.png", "x", ".png")
    assert photo_size(image) == (8, 12)
    assert np.asarray(read_photo(image)).max() == 7
    assert np.array_equal(read_map(mask), read_map(source / "a" / "m.png"))
    assert fingerprint(text) == fingerprint(found.file("top.txt")) != fingerprint(image)
    assert str(image).endswith(("all.zip/a/b/x.png", "all.tar/a/b/x.png"))
    assert found.file("none") is None


@pytest.mark.parametrize(
    ("name", "coding", "flag"),
    [("Straße ü.txt", "utf-8", 0), ("Straße ü.txt", "utf-8", 1 << 11), ("Straße ü.txt", "cp437", 0)],
)
def test_names_in_zip_files(name, coding, flag, tmp_path):
    """Info-ZIP stores UTF-8 without the flag."""
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
    (root / "all.zip").unlink()
    with pytest.raises(InputError, match="cannot be unpacked"):
        member.read_bytes()
    (root / "x.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(InputError, match=r"x\.tar: not a tar file"):
        SourceTree(root)


def test_files_of_a_zip_that_overlap(tmp_path):
    """A few kilobytes could be the content of any number of photos."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("a.txt", "text")
        file.writestr("b.txt", "text")
    data = bytearray((tmp_path / "all.zip").read_bytes())
    start = data.rindex(b"PK\1\2") + 42
    data[start : start + 4] = bytes(4)
    (tmp_path / "all.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"b\.txt overlaps another file"):
        SourceTree(tmp_path)


@pytest.mark.parametrize(("kind", "path"), [("zip", "a/" * 65 + "x"), ("tar", "a" * 4097)])
def test_paths_that_take_memory(path, kind, tmp_path):
    """Each folder of a path is held, so that a few long ones would take gigabytes."""
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
            file.writestr(path, "")
    else:
        with tarfile.open(tmp_path / "all.tar", "w") as file:
            file.addfile(tarfile.TarInfo(path))
    with pytest.raises(InputError, match=r"a path of .* characters in .* folders .*; the limits are 4096 and 64"):
        SourceTree(tmp_path)


def test_chains_of_links(tmp_path):
    """Following each of many would take hours."""
    with tarfile.open(tmp_path / "all.tar", "w") as file:
        file.addfile(tarfile.TarInfo("0"))
        for number in range(1, 50):
            info = tarfile.TarInfo(str(number))
            info.type, info.linkname = tarfile.SYMTYPE, str(number - 1)
            file.addfile(info)
    assert sorted(SourceTree(tmp_path).files("").keys() - {"all.tar"}) == sorted(map(str, range(40)))


def test_unsupported_compression(source, tmp_path):
    (tmp_path / "z").mkdir()
    zip_of(source, tmp_path / "z" / "all.zip", zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match="encrypted or packed in an unusual way; unpack the archive"):
        SourceTree(tmp_path / "z")


def test_compressed_tar_is_reported(tmp_path):
    (tmp_path / "train.tar.gz").write_bytes(b"")
    assert SourceTree(tmp_path).hint == f"; {tmp_path}/train.tar.gz cannot be read in place, unpack it"
    with pytest.raises(InputError, match=r"0 images found.*train\.tar\.gz cannot be read in place"):
        prepare_cityscapes(tmp_path, tmp_path / "out")
