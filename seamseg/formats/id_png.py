"""PNGs whose colours are the ids of segments: R + 256 G + 65536 B, 0 void.

The usual kind, 8-bit RGB that is not interlaced, is read by our own decoder, which knows that such maps are made of
long runs; every other kind, or all if the kernels were not compiled, by Pillow. The checksum of every chunk is
compared, so that a file with a wrong bit is found.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.idmaps.id_runs import IdRuns, decode_id_runs, has_kernel, id_runs_of
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.limits import refuse_postscript

MAX_ID = (1 << 24) - 1
"""Largest id that three channels can hold."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_USUAL = bytes((8, 2, 0, 0, 0))
"""The end of a header: 8 bits, RGB, the one compression, the one set of filters, not interlaced."""


def read_id_png(path: str | Path) -> np.ndarray:
    """The segment ids of a panoptic PNG, `H x W` uint32.

    Raises
    ------
    InputError
        if the file is missing, broken or has more than 8 bits a channel
    """
    found = _read(path)
    return found.dense() if isinstance(found, IdRuns) else found


def read_id_runs(path: str | Path) -> IdRuns:
    """The same as runs, which are all that counting needs; raises as :func:`read_id_png`."""
    found = _read(path)
    return found if isinstance(found, IdRuns) else id_runs_of(found)


def write_id_png(path: str | Path, ids: np.ndarray) -> None:
    """Write segment ids, `H x W` in `0 .. 2^24-1`, as a panoptic PNG, whole or not at all; missing folders are made."""
    picture = id_picture(ids)
    with replacing(Path(path)) as temporary:
        # level 3 is half as slow as Pillow's default; maps of large flat regions stay small
        picture.save(temporary, format="PNG", compress_level=3)


def id_picture(ids: np.ndarray) -> Image.Image:
    """The RGB picture of segment ids, `H x W` in `0 .. 2^24-1`."""
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > MAX_ID):
        raise ValueError(f"panoptic PNG: ids must be 0 to {MAX_ID}, got {int(ids.min())} to {int(ids.max())}")
    rgb = np.empty((*ids.shape, 3), np.uint8)
    for channel in range(3):
        rgb[..., channel] = (ids >> (8 * channel)) & 255
    return Image.fromarray(rgb)


def _read(path: str | Path) -> IdRuns | np.ndarray:
    try:
        data = Path(path).read_bytes()
        usual = _usual_stream(data, path) if data.startswith(_SIGNATURE) else None
        if usual is not None:
            if has_kernel():
                with suppress(ValueError):  # which is rare; then Pillow says what is wrong, or is content
                    return decode_id_runs(*usual)
            _check_size(*usual)
        return _read_by_pillow(data, path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such panoptic PNG") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable PNG: {error}") from error


def _usual_stream(data: bytes, path: str | Path) -> tuple[bytes, int, int] | None:
    """The compressed rows, height and width of a PNG of the usual kind; ValueError if the file is broken."""
    header, parts, plain = b"", [], True
    for kind, content in _chunks(data):
        if kind == b"IHDR":
            header = bytes(content)
        elif kind == b"IDAT":
            parts.append(content)
        elif kind == b"acTL":  # more than one picture
            plain = False
    if len(header) != 13:
        raise ValueError("it has no header")
    width, height, bits = struct.unpack_from(">IIB", header)
    if bits > 8:
        raise InputError(f"{path}: a panoptic PNG has three channels of 8 bits, this one has {bits} bits a channel")
    # Pillow warns of pictures above its limit, or refuses them
    if not plain or header[8:] != _USUAL or not 0 < width * height <= (Image.MAX_IMAGE_PIXELS or 1 << 30):
        return None
    return b"".join(parts), height, width


def _check_size(stream: bytes, height: int, width: int) -> None:
    """ValueError if rows are missing, for which Pillow would put black ones."""
    size = height * (3 * width + 1)
    try:
        found = len(zlib.decompressobj().decompress(stream, size))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if found < size:
        raise ValueError(f"it holds {found} bytes of the {size} that {width} x {height} pixels need")


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and content of each chunk to the last; ValueError if a checksum is wrong or the file is cut off."""
    view, at = memoryview(data), len(_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ValueError("it is cut off")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            raise ValueError("it is cut off")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise ValueError(f"the checksum of its {kind.decode('latin-1')} chunk at byte {at} is wrong")
        yield kind, view[at + 8 : end]
        at = end + 4


def _read_by_pillow(data: bytes, path: str | Path) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        refuse_postscript(image)
        if image.mode not in ("RGB", "RGBA", "P", "L", "1"):
            raise InputError(f"{path}: a panoptic PNG has three channels of 8 bits, this one is of mode {image.mode}")
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        words = np.frombuffer(rgb.tobytes("raw", "RGBX"), "<u4")
        return (words & MAX_ID).reshape(image.height, image.width)
