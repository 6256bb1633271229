"""A source in any number of .zip and .tar files gives the same bytes as unpacked."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sharded_sources import SOURCES, pack, sharded, write_source
from support.source_files import photo, picture, tree

from seamseg.prepare.archives import SourceTree
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.convert import ConversionOptions
from seamseg.utils.errors import InputError

quick = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
@quick
@given(st.data())
def test_shards_equal_folders(source, data):
    names = st.sampled_from(["a.zip", "b.zip", "c.tar", "d.tar"])
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "plain"), Path(folder, "packed")
        write_source(source, plain)
        sharded(plain, packed, source.mounts, lambda: data.draw(names))
        source.convert(plain, Path(folder, "one"))
        source.convert(packed, Path(folder, "two"))
        assert tree(Path(folder, "one")) == tree(Path(folder, "two"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
@pytest.mark.parametrize(("first", "second"), [("1.zip", "2.tar"), ("1.tar", "2.zip")])
def test_file_name_in_two_shards(source, first, second, tmp_path):
    """Equal files are one; different ones are an error that names both, and no folder seems complete."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    write_source(source, plain)
    sharded(plain, packed, source.mounts, lambda: first)
    path = plain / source.mask
    mount = next(m for m in source.mounts if m == "" or source.mask.startswith(f"{m}/"))
    inner = source.mask[len(mount) :].lstrip("/")
    pack([(path, inner)], packed / mount / second)
    source.convert(packed, tmp_path / "one")
    source.convert(plain, tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")

    # same size, other content
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    pack([(path, inner)], packed / mount / second)
    with pytest.raises(InputError, match="other content") as error:
        source.convert(packed, tmp_path / "three")
    message = str(error.value)
    assert f"{packed / mount / second}/{inner}: " in message
    assert f"{packed / mount / first}/{inner} has" in message
    assert "\n" not in message
    assert not (tmp_path / "three" / "metadata.bin").exists()


def cityscapes_frame(root: Path) -> tuple[Path, Path]:
    image = photo(root / "leftImg8bit" / "train" / "ulm" / "ulm_0_leftImg8bit.png")
    ids = np.full((8, 12), 7)
    return image, picture(root / "gtFine" / "train" / "ulm" / "ulm_0_gtFine_instanceIds.png", ids, np.uint16)


def test_archives_may_have_different_readmes(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    files = cityscapes_frame(plain)
    packed.mkdir()
    for number, path in enumerate(files):
        with zipfile.ZipFile(packed / f"{number}.zip", "w") as file:
            file.write(path, path.relative_to(plain).as_posix())
            file.writestr("README", f"part {number}")
            file.writestr("license.txt", "the same")
    prepare_cityscapes(packed, tmp_path / "out", ["train"], ConversionOptions(1))
    found = SourceTree(packed)
    assert found.file("license.txt").read_bytes() == b"the same"
    with pytest.raises(InputError, match=r"1\.zip/README: .*0\.zip/README has the same name and other content"):
        found.file("README").read_bytes()


def test_later_file_in_one_archive_wins(tmp_path):
    """As when the archive is unpacked; `tar --append` makes such archives."""
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for content in (b"old", b"new!"):
            info = tarfile.TarInfo("x.txt")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    assert SourceTree(tmp_path).file("x.txt").read_bytes() == b"new!"


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
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "all.tar", "w") as file:
        file.add(raw, ".")
    found = SourceTree(packed)
    assert list(found.files("a")) == ["x.png", "y.png"]
    assert list(found.files("b")) == ["z.png"]
    assert {found.file(p).read_bytes() for p in ("a/x.png", "a/y.png", "b/z.png")} == {b"content"}
