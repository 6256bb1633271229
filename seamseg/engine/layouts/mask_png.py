"""PNG of one object on an empty picture, whose cost is that of the object."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

import numpy as np

_ADLER = 65521


def mask_png(crop: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> bytes:
    """An 8 bit grey PNG, 255 on the object and 0 elsewhere.

    The empty rows above and below are put together from blocks that were compressed before: parts of a deflate stream
    that end with a full flush may follow each other in any order.

    Parameters
    ----------
    crop : bool, the object
    corner : `(y, x)` of the crop, which lies inside the picture
    size : `(height, width)` of the picture
    """
    (y, x), (rows, columns), (height, width) = corner, crop.shape, size
    # a row begins with the number of its filter, 0 for none
    lines = np.zeros((rows, width + 1), np.uint8)
    lines[:, x + 1 : x + 1 + columns][crop] = 255
    middle = lines.tobytes()
    row = width + 1
    checksum = zlib.adler32(middle, _adler_of_zeros(1, y * row))
    checksum = _adler_of_zeros(checksum, (height - y - rows) * row)
    parts = [b"\x78\x01", *_empty_rows(y, row), _deflate(middle), *_empty_rows(height - y - rows, row)]
    data = b"".join(parts) + b"\x03\x00" + struct.pack(">I", checksum)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _empty_rows(count: int, row: int) -> list[bytes]:
    return [_empty_block(k, row) for k in range(count.bit_length()) if count >> k & 1]


@lru_cache(maxsize=256)
def _empty_block(power: int, row: int) -> bytes:
    """`2^power` rows of `row` zeros."""
    return _deflate(bytes(row << power))


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def _adler_of_zeros(checksum: int, count: int) -> int:
    """The Adler-32 after `count` zeros more: its low half stays, its high half grows by it each time."""
    low, high = checksum & 0xFFFF, checksum >> 16
    return ((high + count * low) % _ADLER) << 16 | low


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
