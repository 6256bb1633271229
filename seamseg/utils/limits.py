"""Reading files that somebody else made: never more bytes, nor deeper structures, than such a file can sanely have.

What a header states is checked before anything is read or inflated, and reading stops at the limit whatever it states.
Each refusal is one line. Nothing here needs torch.
"""

from __future__ import annotations

import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

from seamseg.utils.errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

CONFIG_BYTES = MIB
"""Largest INI file, class list or class mapping."""
MODEL_METADATA_BYTES = 64 * MIB
"""Largest `metadata.bin` of a model."""
SNAPSHOT_BYTES = 16 * GIB
"""Largest snapshot in a zip file."""
TEXT_BYTES = GIB
"""Largest `metadata.bin` of a data set, list of images or evaluation."""
EVALUATION_BYTES = 64 * MIB
"""Largest summary of an evaluation."""
LINE_BYTES = 64 * MIB
"""Longest line of a JSON Lines file."""
ANNOTATION_BYTES = 4 * GIB
"""Largest JSON of annotations: LVIS, the largest in use, has 1.1 GiB."""
PHOTO_BYTES = GIB
"""Largest file of a picture that is read into memory, from an archive, a shard or a URL: above an uncompressed one of
`MAX_PIXELS` (`seamseg/data/images.py`) with four bytes a pixel, 768 MiB."""

FREE_BYTES = 16 * MIB
"""Members of an archive up to this size are inflated whatever their ratio."""
RATIO = 50
"""A larger member may not be more times its size in the archive: trained weights reach 1.1, annotations 10, indented
ones 25."""
_PROGRAMS = ("EPS", "WMF")
_TAR_HEADER_BYTES = 64 * KIB
_BLOCK_BYTES = 4 * MIB
_EOF_HEADER, _HEADER_ERROR = tarfile.EOFHeaderError, tarfile.HeaderError  # type: ignore[attr-defined]
_COMPRESSIONS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BYTES_OF_CONTAINER = 16
_FREE_CONTAINERS = 1 << 18


def in_words(size: int) -> str:
    """A number of bytes in words: `512 KiB`, `64 MiB`, `3.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"


class TooLarge(InputError):
    """A file, or a member of an archive, is larger than its limit."""


def read_limited(file: IO[bytes], limit: int, name: str, what: str, expected: int = 0) -> bytes:
    """The rest of a file or stream; TooLarge if that is more than `limit` bytes, of which no more are read.

    Parameters
    ----------
    file : to read from
    limit : bytes
    name, what : of the file in the error, as in "NAME: is larger than 1 MiB, the limit of a WHAT"
    expected : bytes that it probably has, which are read at once; all others are read in blocks
    """
    data = file.read(min(limit, max(expected, _BLOCK_BYTES)) + 1)  # memory for so many bytes is reserved
    parts, left = [data], limit + 1 - len(data)
    while data and left > 0:  # a stream may give less than it was asked for
        data = file.read(min(left, _BLOCK_BYTES))
        parts.append(data)
        left -= len(data)
    if left <= 0:
        raise TooLarge(f"{name}: is larger than {in_words(limit)}, the limit of a {what}")
    return parts[0] if len(parts) <= 2 and not parts[-1] else b"".join(parts)


def check_member(name: str, packed: int, size: int, limit: int, what: str, free: int = FREE_BYTES) -> None:
    """Check the sizes that an archive states of a member before it is read.

    Parameters
    ----------
    name, what : as of :func:`read_limited`
    packed, size : in the archive, and inflated, in bytes
    limit : bytes
    free : up to so many bytes the ratio may be any

    Raises
    ------
    TooLarge
        if it is larger than `limit`, of a negative size, or larger than `free` and more than :data:`RATIO` times its
        size in the archive
    """
    if min(packed, size) < 0:
        raise TooLarge(f"{name}: the archive states a size of {min(packed, size)} bytes")
    if size > limit:
        raise TooLarge(f"{name}: {in_words(size)} are above {in_words(limit)}, the limit of a {what}")
    if size > max(free, RATIO * packed):
        raise TooLarge(
            f"{name}: {in_words(packed)} would be inflated to {in_words(size)}; the limit is {RATIO} times the size "
            f"in the archive, or {in_words(free)}"
        )


def packed_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """The size of a member in the archive; BadZipFile if the file has no room for what the header states."""
    if info.header_offset + info.compress_size > archive.start_dir:
        raise zipfile.BadZipFile(f"{info.filename} states a packed size of {in_words(info.compress_size)}")
    return info.compress_size


def check_method(info: zipfile.ZipInfo) -> None:
    """NotImplementedError if a member is neither stored nor deflated: the other kinds inflate a block to any size."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError("compression method other than deflate")


def read_member(archive: zipfile.ZipFile, member: str, limit: int, what: str) -> bytes:
    """A member of a zip file; never inflates more than the header states.

    Parameters
    ----------
    archive, member : of which the member with this name
    limit : bytes
    what : as of :func:`read_limited`

    Raises
    ------
    TooLarge
        see :func:`check_member`
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError
        if it is damaged, encrypted or of a kind that Python cannot read
    """
    info = archive.getinfo(member)
    name = f"{archive.filename}:{member}"
    check_method(info)
    check_member(name, packed_size(archive, info), info.file_size, limit, what)
    with archive.open(info) as file:
        return read_limited(file, info.file_size, name, what, expected=info.file_size)


def inflate(data: bytes, size: int) -> bytes:
    """The content of a raw deflate stream; zlib.error if it is not of `size` bytes. No more than that are inflated."""
    inflater = zlib.decompressobj(-15)
    content = inflater.decompress(data, size + 1)
    if len(content) != size or not (inflater.eof or not inflater.unconsumed_tail):
        raise zlib.error(f"it does not hold the stated {size} bytes")
    return content


def refuse_program(image: Any) -> None:
    """OSError if an open Pillow image, whatever its name, is of a format that Pillow has another program draw (EPS)."""
    if image.format in _PROGRAMS:
        raise OSError(f"it is {image.format}, a program that draws and no picture; convert it")


def parse_json(data: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """As `json.loads`, for text of anybody.

    Parameters
    ----------
    data : the text
    constant : called for NaN and Infinity, which are no JSON

    Raises
    ------
    ValueError
        if it is no JSON, is nested too deep, or holds more lists and objects than its size explains: each takes some
        hundred bytes of memory
    """
    brackets = (b"[", b"{") if isinstance(data, bytes) else ("[", "{")
    containers = sum(data.count(bracket) for bracket in brackets)  # type: ignore[arg-type, misc]
    if containers > _FREE_CONTAINERS + len(data) // _BYTES_OF_CONTAINER:
        raise ValueError(f"{containers} lists and objects in {in_words(len(data))}, which no annotations have")
    try:
        return json.loads(data, parse_constant=constant)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None


def compression(head: bytes) -> str:
    """What compressed a file that begins with these 6 bytes: bzip2, xz or zstd; empty if it was none of them."""
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), "")


class SparseMember(tarfile.ReadError):
    """A member of a tar file of which only parts are stored; its size is whatever its header states."""


class LimitedTarInfo(tarfile.TarInfo):
    """The header of a member of a tar file. One that is cut off or garbage is an error; `tarfile` would take it for the
    end. So are sparse members, and extended headers (long names) above 64 KiB, which `tarfile` would read whole."""

    _EXTENDED = (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> LimitedTarInfo:
        """See `tarfile.TarInfo`"""
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in cls._EXTENDED and info.size > _TAR_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {in_words(info.size)}, the limit is {in_words(_TAR_HEADER_BYTES)}")
        return info

    @classmethod
    def fromtarfile(cls, archive: Any) -> LimitedTarInfo:
        """See `tarfile.TarInfo`"""
        try:
            info = super().fromtarfile(archive)
            info._block(info.size)  # an extended header for all files may have set it
            return info
        except _EOF_HEADER:
            raise
        except _HEADER_ERROR as error:
            raise tarfile.ReadError(f"{error} where a file or the end mark should be") from error
        except IndexError:
            raise tarfile.ReadError("it ends in the middle of a header") from None

    def _block(self, count: int) -> int:
        if count < 0:  # of an extended header; `tarfile` would seek backwards, to read the same header again
            raise tarfile.ReadError(f"a file with a size of {count} bytes")
        return super()._block(count)  # type: ignore[misc, no-any-return]

    def _proc_sparse(self, archive: Any) -> Any:
        raise SparseMember(self.name)

    def _proc_gnusparse_10(self, next: Any, *_: Any) -> Any:
        raise SparseMember(self.name)
