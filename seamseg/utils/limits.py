"""Limits for reading untrusted files, archives, JSON and images. Does not import torch.

Sizes stated in headers are checked before anything is read or decompressed, and reading stops at the limit whatever the
header states. Each error message is one line.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from seamseg.utils.errors import InputError, UnreadableImage, one_line

if TYPE_CHECKING:
    from PIL import Image

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
ANNOTATION_BYTES = 4 * GIB
"""Largest JSON of annotations; LVIS, the largest public data set, has 1.1 GiB."""
IMAGE_BYTES = GIB
"""Largest image file that is read into memory from an archive: more than an uncompressed image of `MAX_PIXELS`
(`seamseg/maps/images.py`) with four bytes per pixel, 768 MiB."""
FREE_BYTES = 16 * MIB
"""Members of an archive up to this size may have any compression ratio."""
RATIO = 50
"""Largest compression ratio of larger members: trained weights reach 1.1, annotations 10, indented ones 25."""
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
"""Names in Pillow. AVIF is last since not every Pillow has it."""
_LONGEST_SIDES = {"JPEG": 65_500, "WEBP": 16_383}
_TAR_HEADER_BYTES = 64 * KIB
_MOST_PAX_HEADERS = 100
_BLOCK_BYTES = 4 * MIB
_INFLATED_BYTES = 64 * KIB
_EOF_HEADER, _HEADER_ERROR = tarfile.EOFHeaderError, tarfile.HeaderError  # type: ignore[attr-defined]
_BYTES_OF_CONTAINER = 16
_FREE_CONTAINERS = 1 << 18
IMAGE_MEMORY = "SEAMSEG_IMAGE_MEMORY"
"""Environment variable with the budget of an image in GB, which child processes inherit."""
BUDGET_GB = 1.5
RGB_BYTES = 7
"""Memory of a pixel of an image and of its copy as an array: Pillow stores RGB in four bytes."""
ALONE_PIXELS = 500_000_000 // RGB_BYTES
"""`predict` decodes images with more pixels, 71 million, one at a time."""
MASK_BYTES = 16
"""Memory of a pixel of a mask: Pillow's image, `int32`, and the arrays of the segments that are made of it."""

_TILE_WIDTH, _TILE_HEIGHT = 322, 323
_OF_FRAMES = ("WEBP", "AVIF")
_FRAME_BYTES = 16
"""Memory of a pixel of these: planes of the frame, two canvases, a copy in Python, and Pillow's image."""
_SIDE_BYTES = 800
"""Memory of a pixel of the longer side: tables to resize it, and rows that a run-length BMP may skip at once."""


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

    InputError if one is above `limit`, or above both :data:`FREE_BYTES` and :data:`RATIO` times the packed one.
    """
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

    try:
        return Image.open(source, formats=IMAGE_FORMATS)
    except KeyError as error:  # Pillow lacks this format, and no other reader took the file
        raise UnidentifiedImageError(f"cannot identify it; Pillow {Image.__version__} reads no {error}") from None


def image_budget() -> float:
    """Return the most bytes that decoding an image may take; InputError if :data:`IMAGE_MEMORY` is not a number."""
    text = os.environ.get(IMAGE_MEMORY, "")
    try:
        found = float(text or BUDGET_GB)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InputError(f"{IMAGE_MEMORY}={text}: must be a positive number of GB")
    return found * 1e9


def memory_needed(image: Image.Image, per_pixel: float = RGB_BYTES) -> int:
    """Return the estimated bytes of decoding an open image; `per_pixel` until the image and its arrays are dropped."""
    per_pixel = max(per_pixel, _FRAME_BYTES if image.format in _OF_FRAMES else 0)
    tags = image.tag_v2 if image.format == "TIFF" else {}  # type: ignore[attr-defined]
    tile = tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_HEIGHT, 0)  # decoded whole, also of a smaller image
    return int(per_pixel * max(image.width * image.height, tile)) + _SIDE_BYTES * max(image.size)


def check_memory(name: object, kind: str, size: tuple[int, int], needed: float) -> None:
    """Raise UnreadableImage if more bytes are needed than :func:`image_budget` allows.

    Path, format, and `(width, height)` are for the error.
    """
    if needed > (most := image_budget()):
        raise UnreadableImage(
            f"{name}: decoding {size[0]} x {size[1]} pixels of {kind} takes {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {most / 1e9:.3g} GB; the environment variable {IMAGE_MEMORY} sets it"
        )


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
    """Return the values of INI text by section and key, as `configparser` reads them; nothing is replaced in values.

    The first of the `delimiters` in a line ends its key, which `key` normalizes. InputError, naming `source` and the
    line, if it is not INI text, or a section or key occurs twice.
    """
    import configparser  # not for --help

    parser = configparser.ConfigParser(interpolation=None, delimiters=delimiters, default_section="")
    parser.optionxform = key  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text, "INI")
    except configparser.Error as error:
        number = getattr(error, "lineno", None) or error.errors[0][0]  # type: ignore[attr-defined]
        what = {
            "DuplicateSectionError": "the section occurs twice",
            "DuplicateOptionError": "the key occurs twice in its section",
            "MissingSectionHeaderError": "a [section] must come before the first key",
        }.get(type(error).__name__, "not `key = value`")
        line = text.split("\n")[number - 1].strip()
        raise InputError(f"{source}: line {number}: {what}: {line!r:.80}") from None
    return {name: dict(parser[name]) for name in parser.sections()}


def parse_json(data: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse untrusted JSON as `json.loads` does; `constant` is called for NaN and Infinity.

    ValueError if the text is not JSON, is nested too deeply, or holds more lists and objects than its size accounts
    for: each takes a few hundred bytes of memory.
    """
    brackets = (b"[", b"{") if isinstance(data, bytes) else ("[", "{")
    containers = sum(data.count(bracket) for bracket in brackets)  # type: ignore[arg-type, misc]
    if containers > _FREE_CONTAINERS + len(data) // _BYTES_OF_CONTAINER:
        raise ValueError(f"{containers} lists and objects in {format_bytes(len(data))}, which no annotations have")
    try:
        return json.loads(data, parse_constant=constant)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {error.encoding.upper()} text; save it as UTF-8") from None


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
    (long names) above 64 KiB and maps of sparse files, which `tarfile` reads whole.
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
        if info.type in cls._EXTENDED and info.size > _TAR_HEADER_BYTES:
            raise tarfile.ReadError(
                f"a header of {format_bytes(info.size)}, the limit is {format_bytes(_TAR_HEADER_BYTES)}"
            )
        return info

    @classmethod
    def fromtarfile(cls, archive: Any) -> LimitedTarInfo:
        """Read the next header, see `tarfile.TarInfo`."""
        try:
            info = super().fromtarfile(archive)
        except _EOF_HEADER:
            raise
        except (_HEADER_ERROR, IndexError, RecursionError) as error:
            raise tarfile.ReadError(f"{error} where a file or the end mark should be") from error
        # a negative size lets `tarfile` read the same header for ever
        if info.size < 0 or len(archive.pax_headers) > _MOST_PAX_HEADERS:
            raise tarfile.ReadError(
                f"a file of {info.size} bytes, with {len(archive.pax_headers)} headers of all files"
            )
        return info

    def _no_sparse(self, *_: Any) -> Any:
        raise tarfile.ReadError(f"{self.name} is packed in an unusual way (sparse)")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _no_sparse
