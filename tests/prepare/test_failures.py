"""Damaged sources: one-line errors that name the file, and no folder that seems complete."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.sharded_sources import ONE, SIZE, SOURCES, sharded, write_source
from support.source_files import photo

from seamseg.utils.errors import InputError

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)


def refusal(source, root: Path, out: Path) -> str:
    """Return the error of a converter, which must not leave a complete folder."""
    with pytest.raises(InputError) as error:
        source.convert(root, out)
    assert not (out / "metadata.bin").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def _headers(data: bytearray, name: bytes) -> tuple[int, int]:
    """Return where the header of a file begins in a zip file, and its entry in the list at the end."""
    return data.index(name) - 30, data.rindex(name) - 46


def _encrypted(data: bytearray, local: int, listed: int) -> None:
    data[local + 6] |= 1
    data[listed + 8] |= 1


def _with_a_wrong_checksum(data: bytearray, local: int, listed: int) -> None:
    data[local + 14] ^= 1
    data[listed + 16] ^= 1


def _not_compressed(data: bytearray, local: int, listed: int) -> None:
    data[local + 8] = data[listed + 10] = zipfile.ZIP_DEFLATED


def _listed_elsewhere(data: bytearray, local: int, listed: int) -> None:
    data[listed + 42 : listed + 46] = (len(data) - 60).to_bytes(4, "little")


def _listed_as_a_huge_file(data: bytearray, local: int, listed: int) -> None:
    data[listed + 24 : listed + 28] = (0xFFFFFFF0).to_bytes(4, "little")


def _listed_without_a_signature(data: bytearray, local: int, listed: int) -> None:
    data[listed] ^= 1


DAMAGE = {
    _encrypted: "is encrypted or packed in an unusual way",
    _with_a_wrong_checksum: "the archive is damaged (wrong checksum)",
    _not_compressed: "cannot be unpacked",
    _listed_elsewhere: "",
    _listed_as_a_huge_file: "4 GiB are above 1 GiB, the limit of a photo or map",
    _listed_without_a_signature: "not a zip file, or a truncated one",
}


@every_source
@pytest.mark.parametrize("spoil", DAMAGE, ids=lambda spoil: spoil.__name__.strip("_"))
def test_damaged_file_in_a_zip(source, spoil, tmp_path):
    """The file is named, unless the list of the archive cannot be read, and nothing is taken for complete."""
    write_source(source, tmp_path / "raw")
    sharded(tmp_path / "raw", tmp_path / "packed", source.mounts, lambda: "shard.zip")
    spoilt = [(path, _member(path, source)) for path in sorted((tmp_path / "packed").rglob("shard.zip"))]
    for path, member in spoilt:
        if member is not None:
            data = bytearray(path.read_bytes())
            spoil(data, *_headers(data, member.encode()))
            path.write_bytes(data)
    message = refusal(source, tmp_path / "packed", tmp_path / "out")
    assert DAMAGE[spoil] in message
    named = [member for path, member in spoilt if member is not None and str(path) in message]
    assert any(member in message for member in named) or (spoil is _listed_without_a_signature and named)
    assert not list(tmp_path.rglob("*.partial"))


def _member(archive: Path, source) -> str | None:
    """Return the path of the annotation of image `a` in an archive; None if it is in another one."""
    with zipfile.ZipFile(archive) as file:
        return next((name for name in file.namelist() if source.mask.endswith(name)), None)


@every_source
def test_ids_without_category(source, tmp_path):
    write_source(source, tmp_path / "raw")
    source.unknown(tmp_path / "raw" / source.mask)
    message = refusal(source, tmp_path / "raw", tmp_path / "out")
    assert message.startswith(f"{tmp_path / 'raw' / source.mask}: ")


@every_source
@pytest.mark.parametrize("names", ["b", "abc"])
def test_photo_without_mask(source, names, tmp_path):
    """Either an error names it, or the photo is skipped with a message; it never becomes an image of void only."""
    messages: list[str] = []
    root, out = tmp_path / "raw", tmp_path / "out"
    write_source(source, root)
    mask = root / source.mask
    lost = [mask.with_name(name + mask.name[1:]) for name in names]
    for path in lost:
        path.unlink()
    try:
        done = source.convert(root, out, replace(ONE, log=messages.append))
    except InputError as failure:
        error = str(failure)
        assert "\n" not in error
        assert not (out / "metadata.bin").exists()
        named = any(path.name in error for path in lost)
        assert named or (names == "abc" and " 0 " in error) or "no folder of PNG" in error
    else:
        assert [image.id for image in done.metadata.images] == ["a", "c"]
        assert any(re.search(r"\b1 (photo|image)s?\b", line) for line in messages)


@every_source
def test_mask_without_photo(source, tmp_path):
    write_source(source, tmp_path / "raw")
    (lost,) = [
        p for p in (tmp_path / "raw").rglob("a*.png") if p != tmp_path / "raw" / source.mask and "i/" not in str(p)
    ]
    lost.unlink()
    if source.name == "folders":
        # labels without photo are allowed
        assert [i.id for i in source.convert(tmp_path / "raw", tmp_path / "out").metadata.images] == ["b", "c"]
    else:
        assert lost.stem in refusal(source, tmp_path / "raw", tmp_path / "out")


@every_source
def test_photo_of_another_size(source, tmp_path):
    root = tmp_path / "raw"
    write_source(source, root)
    (path,) = [
        p for p in root.rglob("b*.png") if p.parent.name in ("x", "images", "val2017", "p") and "gtFine" not in p.parts
    ]
    photo(path, (SIZE[0], SIZE[1] - 1))
    message = refusal(source, root, tmp_path / "out")
    assert path.name in message
    assert "11 x 8" in message or "size" in message
