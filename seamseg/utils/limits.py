"""Size limits for reading untrusted files, archives and JSON. Does not import torch.

Sizes stated in headers are checked before anything is read or decompressed, and reading stops at the limit whatever the
header states. Each error message is one line.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from seamseg.utils.errors import InputError, one_line

if TYPE_CHECKING:
    from PIL import Image

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

CONFIG_BYTES = MIB
"""Largest INI file, class list or class mapping."""
MODEL_METADATA_BYTES = 64 * MIB
"""Largest `metadata.bin` of a model."""
SAFETENSORS_HEADER_BYTES = 8 * MIB
"""Largest header of a safetensors file; a panoptic network has 50 KiB."""
SNAPSHOT_BYTES = 16 * GIB
"""Largest snapshot in a zip file."""
TEXT_BYTES = GIB
"""Largest `metadata.bin` of a data set, list of images or evaluation."""
EVALUATION_BYTES = 64 * MIB
"""Largest summary of an evaluation."""
LINE_BYTES = 64 * MIB
"""Longest line of a JSON Lines file."""
ANNOTATION_BYTES = 4 * GIB
"""Largest JSON of annotations; LVIS, the largest public data set, has 1.1 GiB."""
IMAGE_BYTES = GIB
"""Largest image file that is read into memory from an archive: more than an uncompressed image of `MAX_PIXELS`
(`seamseg/maps/images.py`) with four bytes per pixel, 768 MiB."""
IMAGE_NAME_BYTES = KIB
"""Longest path of an image in its folder, and of its outputs."""
PATH_CHARACTERS = 4096
"""Longest path in an archive; the limit of Linux in bytes."""
FREE_BYTES = 16 * MIB
"""Members of an archive up to this size may have any compression ratio."""
RATIO = 50
"""Largest compression ratio of larger members: trained weights reach 1.1, annotations 10, indented ones 25."""
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
"""Names in Pillow. AVIF is last since not every Pillow has it."""
_LONGEST_SIDES = {"JPEG": 65_500, "WEBP": 16_383}
_TAR_HEADER_BYTES = 64 * KIB
_MOST_PAX_HEADERS, _LONGEST_DIGITS = 100, 256
_BLOCK_BYTES = 4 * MIB
_INFLATED_BYTES = 64 * KIB
_EOF_HEADER, _HEADER_ERROR = tarfile.EOFHeaderError, tarfile.HeaderError  # type: ignore[attr-defined]
_BYTES_OF_CONTAINER = 16
_LONG_NUMBER = b"0" * 19
_HASH_MODULUS = (1 << 61) - 1
"""Integers below have a hash of their own, times of files in nanoseconds among them."""
_SECTION = re.compile(r"\[(.+)\]")
_DIGITS = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
_FREE_CONTAINERS = 1 << 18
_NO_FILES = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def file_status(path: str | Path) -> os.stat_result:
    """Return `os.stat` of a file; OSError for a pipe or socket, which waits, or a device, which may have no end."""
    status = os.stat(path)
    if (kind := _NO_FILES.get(stat.S_IFMT(status.st_mode))) is not None:
        raise OSError(errno.EINVAL, f"{kind}, where a file is needed", str(path))
    return status


def open_file(path: str | Path) -> BinaryIO:
    """Open a file for reading; OSError as of :func:`file_status` and `open`."""
    file_status(path)
    # a pipe that has come meanwhile does not wait either
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def format_bytes(size: int) -> str:
    """Format a number of bytes: `512 KiB`, `64 MiB`, `3.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"


def read_limited(file: IO[bytes], limit: int, name: str, what: str, expected: int = 0) -> bytes:
    """Read the rest of a file or stream; InputError, without reading on, if that is more than `limit` bytes.

    The error is "NAME: is larger than 1 MiB, the limit of a WHAT". The `expected` bytes are read at once.
    """
    data = file.read(min(limit, max(expected, _BLOCK_BYTES)) + 1)  # allocates as many bytes
    parts, left = [data], limit + 1 - len(data)
    while data and left > 0:  # a stream may return less than requested
        data = file.read(min(left, _BLOCK_BYTES))
        parts.append(data)
        left -= len(data)
    if left <= 0:
        raise InputError(f"{name}: is larger than {format_bytes(limit)}, the limit of a {what}")
    return parts[0] if len(parts) <= 2 and not parts[-1] else b"".join(parts)


def check_member(name: str, packed: int, size: int, limit: int, what: str) -> None:
    """Check the stated sizes of a member of an archive, in bytes, before it is read; names as of :func:`read_limited`.

    InputError if one is negative, above `limit`, or above both :data:`FREE_BYTES` and :data:`RATIO` times the packed
    one.
    """
    if min(packed, size) < 0:
        raise InputError(f"{name}: the archive states a size of {min(packed, size)} bytes")
    if size > limit:
        raise InputError(f"{name}: {format_bytes(size)} are above {format_bytes(limit)}, the limit of a {what}")
    if size > max(FREE_BYTES, RATIO * packed):
        raise InputError(
            f"{name}: {format_bytes(packed)} would be inflated to {format_bytes(size)}; the limit is {RATIO} times the "
            f"size in the archive, or {format_bytes(FREE_BYTES)}"
        )


def packed_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the compressed size of a member; raise BadZipFile if the file is too short for the stated size."""
    if info.header_offset + info.compress_size > archive.start_dir:
        raise zipfile.BadZipFile(f"{info.filename} states a packed size of {format_bytes(info.compress_size)}")
    return info.compress_size


def read_member(archive: zipfile.ZipFile, member: str, limit: int, what: str) -> bytes:
    """Read a member of a zip file of at most `limit` bytes; never decompresses more than the header states.

    Raises as :func:`check_member`; and BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError or
    ValueError if it is damaged, encrypted or of an unsupported kind.
    """
    info = archive.getinfo(member)
    name = f"{archive.filename}:{member}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # blocks of other methods may have any size
        raise NotImplementedError("compression method other than deflate")
    check_member(name, packed_size(archive, info), info.file_size, limit, what)
    with archive.open(info) as file:
        return read_limited(file, info.file_size, name, what, expected=info.file_size)


def inflate(data: bytes, size: int) -> bytes:
    """Decompress a raw DEFLATE stream of exactly `size` bytes; raise zlib.error if it has another size."""
    inflater = zlib.decompressobj(-15)
    content = io.BytesIO()  # whose content is not copied at the end, as the blocks of zlib are
    for at in range(0, len(data), _INFLATED_BYTES):
        content.write(inflater.decompress(data[at : at + _INFLATED_BYTES], size + 1 - content.tell()))
        if inflater.eof or content.tell() > size:
            break
    if content.tell() != size or not (inflater.eof or not inflater.unconsumed_tail):
        raise zlib.error(f"it does not hold the stated {size} bytes")
    return content.getvalue()


def open_pillow(source: Path | IO[bytes]) -> Image.Image:
    """Open an image with Pillow's readers of the documented formats only; errors as of `PIL.Image.open`.

    Other readers run programs (EPS, WMF, and IPTC, which opens its content with any reader), or decode before limits
    are checked (ICO).
    """
    from PIL import Image, UnidentifiedImageError

    file: Any = source
    if _is_large(source):
        opened = open_file(source) if isinstance(source, (str, Path)) else source
        head = opened.read(4)
        opened.seek(0)
        if head.startswith((b"\xff\xd8", b"\x89PNG", b"GIF8")):
            file = _CountedReads(opened)
        elif opened is not source:
            opened.close()
    try:
        image = Image.open(file, formats=IMAGE_FORMATS)
    except KeyError as error:  # Pillow lacks this format, and no other reader took the file
        raise UnidentifiedImageError(f"cannot identify it; Pillow {Image.__version__} reads no {error}") from None
    if file is not source:
        image._exclusive_fp = True  # type: ignore[attr-defined]  # closed with the image, as a path is
    return image


def _is_large(source: Path | IO[bytes]) -> bool:
    if isinstance(source, (str, Path)):
        return file_status(source).st_size > MIB
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    return size > MIB


class _CountedReads(io.BufferedReader):
    """A JPEG, PNG or GIF of which no more is read than 50 000 times and once for each 64 bytes.

    Pillow reads segments, chunks and fill bytes one by one, a million a second: megabytes of the smallest take minutes.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._left = 50_000 + self.seek(0, os.SEEK_END) // 64
        self.seek(0)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as a buffered reader does; ValueError after too many calls."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("it has far too many small parts")
        return super().read(size)

    def __del__(self) -> None:
        self.close()


def check_sides(size: tuple[int, int], format: str) -> None:
    """Raise InputError if an image of `(width, height)` is too long for a format of Pillow."""
    if max(size) > (most := _LONGEST_SIDES.get(format, max(size))):
        raise InputError(
            f"{size[0]} x {size[1]} pixels do not fit into a {format}, whose sides have at most {most}; choose another "
            "format"
        )


@contextmanager
def reading_image(path: str | Path, missing: str, unreadable: str) -> Iterator[None]:
    """Raise InputError for all errors of reading an image: Pillow's decoders raise nearly any for damaged files.

    The message is the path, then `missing` if the file does not exist, else `unreadable`.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: {missing}") from None
    except Exception as error:
        raise InputError(f"{path}: {unreadable}: {one_line(error) or type(error).__name__}") from error


def read_ini(
    text: str, source: str, delimiters: str = "=:", key: Callable[[str], str] = str.lower
) -> dict[str, dict[str, str]]:
    """Return the values of INI text by section and key, as `configparser` reads them, in linear time.

    `configparser` takes quadratic time for a line of blanks, for lines that are no keys, and for many sections. Nothing
    is replaced in values. The first of the `delimiters` in a line ends its key, which `key` normalizes. InputError,
    naming `source` and the line, if it is not INI text, or a section or key occurs twice.
    """
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    header, lines, indent = "", [""], 0
    no_key, split_key = True, re.compile(f"[{delimiters}]")
    for number, raw in enumerate(text.split("\n"), 1):
        line, where = raw.strip(), f"{source}: line {number}"
        depth = len(raw) - len(raw.lstrip())
        if line.startswith(("#", ";")):
            continue
        if not line or (depth > indent and not no_key):
            lines.append(line)  # of a value of several lines
            continue
        indent, title = depth, _SECTION.match(line)
        if title is not None:
            header, no_key, lines = title[1], True, []
            if header in found:
                raise InputError(f"{where}: duplicate section [{header:.80}]")
            section = found[header] = {}
            continue
        if not found:
            raise InputError(f"{where}: a [section] must come before the first key")
        name, *values = split_key.split(line, maxsplit=1)
        if not name or not values:
            raise InputError(f"{where}: not `key = value`: {line!r:.80}")
        name, no_key, lines = key(name.rstrip()), False, [values[0].strip()]
        if name in section:
            raise InputError(f"{where}: duplicate key {name!r:.80} in [{header:.80}]")
        section[name] = lines
    return {
        title: {name: "\n".join(lines).rstrip() for name, lines in values.items()} for title, values in found.items()
    }


def parse_json(data: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse untrusted JSON as `json.loads` does, except that whole numbers from 2^61 - 1 on become floats.

    Numbers of equal hash, the rest of a division by this one, would make each lookup in a table as slow as in a list.
    `constant` is called for NaN and Infinity. ValueError if the text is not JSON, is nested too deeply, or holds more
    lists and objects than its size accounts for: each takes some hundred bytes of memory.
    """
    brackets = (b"[", b"{") if isinstance(data, bytes) else ("[", "{")
    containers = sum(data.count(bracket) for bracket in brackets)  # type: ignore[arg-type, misc]
    if containers > _FREE_CONTAINERS + len(data) // _BYTES_OF_CONTAINER:
        raise ValueError(f"{containers} lists and objects in {format_bytes(len(data))}, which no annotations have")
    raw = data if isinstance(data, bytes) else data.encode(errors="replace")
    integer = _integer_or_float if b"\0" in raw or _has_long_number(raw) else None  # zero bytes: UTF-16 or UTF-32
    try:
        return json.loads(data, parse_constant=constant, parse_int=integer)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {error.encoding.upper()} text; save it as UTF-8") from None


def _has_long_number(data: bytes) -> bool:
    """Return whether there are 19 digits in a row, without a copy of all data."""
    step = _BLOCK_BYTES
    return any(
        _LONG_NUMBER in data[at : at + step + len(_LONG_NUMBER)].translate(_DIGITS) for at in range(0, len(data), step)
    )


def _integer_or_float(text: str) -> int | float:
    return int(text) if len(text) < 21 and abs(int(text)) < _HASH_MODULUS else float(text)


def whole_number(value: Any) -> int:
    """Return an id of an untrusted file, a number or its text; ValueError unless it is whole and of at most 60 bits."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value) if value.isdecimal() else float(value)
    if not isinstance(value, (int, float)) or not abs(value) < 1 << 60 or value != int(value):
        raise ValueError(f"{str(value)[:40]!r} is not a whole number of at most 60 bits")
    return int(value)


class LimitedTarInfo(tarfile.TarInfo):
    """The header of a member of a tar file, with errors for malformed headers.

    A truncated or invalid header is an error, which `tarfile` takes for the end of the archive. So are extended headers
    (long names) above 64 KiB, which `tarfile` reads whole. The map of a sparse member, of any size, is not read:
    `issparse()` shows that its content must not be.
    """

    _EXTENDED = (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> LimitedTarInfo:
        """Parse a header, see `tarfile.TarInfo`."""
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in cls._EXTENDED and info.size > _TAR_HEADER_BYTES):
            raise tarfile.ReadError(
                f"a header of {format_bytes(info.size)}, the limit is {format_bytes(_TAR_HEADER_BYTES)}"
            )
        return info

    @classmethod
    def fromtarfile(cls, archive: Any) -> LimitedTarInfo:
        """Read the next header, see `tarfile.TarInfo`."""
        try:
            info = super().fromtarfile(archive)
            info._block(info.size)  # it may come from an extended header for all files
            return info
        except _EOF_HEADER:
            raise
        except _HEADER_ERROR as error:
            raise tarfile.ReadError(f"{error} where a file or the end mark should be") from error
        except IndexError:
            raise tarfile.ReadError("it ends in the middle of a header") from None
        except RecursionError:  # each extended header is read within that before it
            raise tarfile.ReadError("too many extended headers of one file") from None

    def _proc_pax(self, archive: Any) -> Any:
        file = archive.fileobj
        data = file.read(self._block(self.size))
        if not _is_pax(data[: self.size]) or len(archive.pax_headers) > _MOST_PAX_HEADERS:
            raise tarfile.ReadError("an extended header that is damaged, or too many for all files")

        def read(count: int) -> bytes:
            archive.fileobj = file
            return data  # type: ignore[no-any-return]

        archive.fileobj = SimpleNamespace(read=read)
        return super()._proc_pax(archive)  # type: ignore[misc]

    def _block(self, count: int) -> int:
        if count < 0:  # from an extended header; `tarfile` would seek backwards and read the same header again
            raise tarfile.ReadError(f"a file with a size of {count} bytes")
        return super()._block(count)  # type: ignore[misc, no-any-return]

    def _proc_sparse(self, archive: Any) -> Any:
        extended = self._sparse_structs[1]  # type: ignore[attr-defined]
        while extended:
            extended = archive.fileobj.read(tarfile.BLOCKSIZE)[504]
        self.sparse: Any = []
        self.offset_data = archive.fileobj.tell()
        archive.offset = self.offset_data + self._block(self.size)
        return self

    def _proc_gnusparse_10(self, next: Any, *_: Any) -> None:
        next.sparse = []


def _is_pax(data: bytes) -> bool:
    """Return whether an extended header is a series of `LENGTH KEY=VALUE`; `tarfile` may take long for others."""
    at = 0
    while at < len(data):
        number, blank, _ = data[at : at + 8].partition(b" ")
        end = at + int(number) if blank and number.isdigit() else 0
        if not at < end <= len(data) or data[end - 1 : end] != b"\n" or data.find(b"=", at, end) < 0:
            return False
        at = end
    return max(map(len, data.translate(_DIGITS).split()), default=0) < _LONGEST_DIGITS
