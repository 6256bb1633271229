"""Files in zip and tar archives are read like unpacked ones, and damage is reported."""

import io
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from support.source_files import photo, picture, zip_of

from seamseg.maps.images import open_image
from seamseg.maps.prepare.archives import ArchiveMember, SourceTree, decoded, fingerprint, read_map, size_of
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
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
    assert (image.name, image.suffix) == ("x.png", ".png")
    assert size_of(image) == (8, 12)
    assert np.asarray(decoded(image, open_image)).max() == 7
    assert np.array_equal(read_map(mask), read_map(source / "a" / "m.png"))
    assert fingerprint(text) == fingerprint(found.file("top.txt")) != fingerprint(image)
    assert str(image).endswith(("all.zip/a/b/x.png", "all.tar/a/b/x.png"))
    assert found.file("none") is None


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
    (root / "x.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(InputError, match=r"x\.tar: not a tar file"):
        SourceTree(root)


def pack(archive, files):
    """Write files, `(path, content)` each."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            for path, content in files:
                file.writestr(path, content)
    else:
        with tarfile.open(archive, "w") as file:
            for path, content in files:
                info = tarfile.TarInfo(path)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(("name", "path"), [("all.zip", "a/" * 65 + "x"), ("all.tar", "a" * 4097)])
def test_paths_that_take_memory(name, path, tmp_path):
    """Each folder of a path is held, so that a few long ones would take gigabytes."""
    pack(tmp_path / name, [(path, b"")])
    with pytest.raises(InputError, match=r"a path of .* characters in .* folders .*; the limits are 4096 and 64"):
        SourceTree(tmp_path)


@pytest.mark.parametrize(("first", "second"), [("1.zip", "2.zip"), ("1.zip", "2.tar"), ("1.tar", "2.zip")])
def test_file_name_in_two_archives(first, second, tmp_path):
    """Equal files are one; different ones are an error if they are read. Within an archive the later one wins."""
    for number, name in enumerate((first, second)):
        pack(
            tmp_path / name, [("README", b"part %d" % number), ("b.txt", b"the same"), (name, b"old"), (name, b"new!")]
        )
    found = SourceTree(tmp_path)
    assert found.file("b.txt").read_bytes() == b"the same"
    with pytest.raises(InputError, match=rf"{second}/README: .*{first}/README has the same name and other content"):
        found.file("README").read_bytes()
    root = SourceTree(tmp_path / first)
    assert root.file(first).read_bytes() == b"new!"


def test_archive_that_differs_from_a_converted_one(tmp_path):
    """It is refused before anything is written, also where nothing needs to be read again."""
    raw, stem = tmp_path / "raw", "bonn_000000_000000"
    image = photo(raw / "leftImg8bit" / "val" / "bonn" / f"{stem}_leftImg8bit.png", (8, 12), 7)
    picture(raw / "gtFine" / "val" / "bonn" / f"{stem}_gtFine_instanceIds.png", np.full((8, 12), 7), np.uint16)
    source = tmp_path / "zips"
    source.mkdir()
    zip_of(raw, source / "all.zip")
    prepare_cityscapes(source, tmp_path / "out", ("val",))
    photo(image, (8, 12), 9)
    zip_of(raw, source / "more.zip")
    for out in (tmp_path / "out", tmp_path / "new"):
        with pytest.raises(InputError, match="has the same name and other content; move one archive away"):
            prepare_cityscapes(source, out, ("val",))
    assert not (tmp_path / "new").exists()


def test_links_in_tar_files(tmp_path):
    """Dataset folders have hard links: tar stores the second name of a file as a link to the first."""
    raw = tmp_path / "raw"
    (raw / "a").mkdir(parents=True)
    (raw / "a" / "x.png").write_bytes(b"content")
    os.link(raw / "a" / "x.png", raw / "a" / "y.png")
    (raw / "b").mkdir()
    (raw / "b" / "z.png").symlink_to("../a/y.png")
    (raw / "b" / "lost.png").symlink_to("../a/none.png")
    (raw / "b" / "round.png").symlink_to("round.png")
    with tarfile.open(tmp_path / "all.tar", "w") as file:
        file.add(raw, ".")
    found = SourceTree(tmp_path / "all.tar")
    assert list(found.files("a")) == ["x.png", "y.png"]
    assert list(found.files("b")) == ["z.png"]
    assert {found.file(p).read_bytes() for p in ("a/x.png", "a/y.png", "b/z.png")} == {b"content"}


def test_unsupported_compression(source, tmp_path):
    (tmp_path / "z").mkdir()
    zip_of(source, tmp_path / "z" / "all.zip", zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match="encrypted or packed in an unusual way; unpack the archive"):
        SourceTree(tmp_path / "z")
