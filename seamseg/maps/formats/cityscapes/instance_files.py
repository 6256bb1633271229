"""Instance results of a frame: a text file with lines `mask.png label confidence`, and the masks."""

from __future__ import annotations

import math
import os
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from seamseg.maps.formats.cityscapes.labels import LABEL_OF
from seamseg.maps.formats.id_png import png_chunk
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_text
from seamseg.utils.limits import MIB

LIST_BYTES = 64 * MIB
"""Maximum size of the text file of a frame."""


@dataclass(frozen=True)
class PredictedInstance:
    """A line of the text file: mask file, label id and confidence."""

    mask: Path
    label: int
    score: float


def read_instance_list(path: Path, root: Path) -> list[PredictedInstance]:
    """Read the instances of a frame; the last of several lines with the same mask counts.

    Masks are relative to the folder of the text file, and must be below `root`.
    """
    what = "list of instances"
    lines = read_text(path, what, LIST_BYTES).splitlines()
    limit = os.path.abspath(root)
    found: dict[Path, PredictedInstance] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        parts = line.split(" ")
        if len(parts) != 3:
            raise InputError(
                f"{where}: has {len(parts)} fields, expected three separated by one space: mask.png labelID confidence"
            )
        name, label, score = parts[0], _number(parts[1], where, "label id"), _number(parts[2], where, "confidence")
        mask = os.path.abspath(path.parent / name)
        if os.path.isabs(name) or os.path.commonpath([limit, mask]) != limit:
            raise InputError(f"{where}: {name} must be a relative path inside {root}")
        if int(label) not in LABEL_OF:
            raise InputError(f"{where}: {parts[1]} is not a Cityscapes label id (24 person, 26 car ...)")
        found[Path(mask)] = PredictedInstance(Path(mask), int(label), score)
    return list(found.values())


def _number(text: str, where: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {text!r} is not a valid {what}")
    return value


_ADLER = 65521


def mask_png(crop: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> bytes:
    """Encode a mask, bool in a box at the corner `(y, x)`, as an 8-bit greyscale PNG of `size`: 255 inside, 0 outside.

    The empty rows above and below are composed of cached compressed blocks: parts of a DEFLATE stream that end with a
    full flush can be concatenated in any order.
    """
    (y, x), (rows, columns), (height, width) = corner, crop.shape, size
    # each row starts with its filter type, 0 for none
    lines = np.zeros((rows, width + 1), np.uint8)
    lines[:, x + 1 : x + 1 + columns][crop] = 255
    middle = lines.tobytes()
    row = width + 1
    checksum = zlib.adler32(middle, _adler_of_zeros(1, y * row))
    checksum = _adler_of_zeros(checksum, (height - y - rows) * row)
    parts = [b"\x78\x01", *_empty_rows(y, row), _deflate(middle), *_empty_rows(height - y - rows, row)]
    data = b"".join(parts) + b"\x03\x00" + struct.pack(">I", checksum)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def _empty_rows(count: int, row: int) -> list[bytes]:
    return [_empty_block(k, row) for k in range(count.bit_length()) if count >> k & 1]


@lru_cache(maxsize=256)
def _empty_block(power: int, row: int) -> bytes:
    return _deflate(bytes(row << power))


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def _adler_of_zeros(checksum: int, count: int) -> int:
    """Update an Adler-32 by `count` zeros: each adds the low half to the high half."""
    low, high = checksum & 0xFFFF, checksum >> 16
    return ((high + count * low) % _ADLER) << 16 | low
