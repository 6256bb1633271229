"""Decompress the rows of a PNG in bands, so that memory does not grow with the picture."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType


def _load_zlib() -> ModuleType:
    """Return zlib-ng, which is several times as fast on id maps (docs/design/libraries.md), or else zlib."""
    try:
        return importlib.import_module("zlib_ng.zlib_ng")
    except ImportError:
        return importlib.import_module("zlib")


zlib = _load_zlib()

BAND_BYTES = 1 << 18
_MAX_RATIO = 1032
"""A DEFLATE stream cannot decompress to more times its size."""


def row_bands(stream: bytes, height: int, row_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed rows of a zlib stream, a few whole rows at a time.

    Parameters
    ----------
    stream : the content of the `IDAT` chunks
    height : number of rows
    row_bytes : bytes of a row with its filter byte

    Raises
    ------
    ValueError
        if the stream is damaged or does not hold exactly `height` rows
    """
    if height * row_bytes > _MAX_RATIO * len(stream):
        raise ValueError("the compressed data are too short for the size")
    return _decompress(stream, height, row_bytes)


def _decompress(stream: bytes, height: int, row_bytes: int) -> Iterator[bytes]:
    decompressor = zlib.decompressobj()
    rows = max(1, BAND_BYTES // row_bytes)
    try:
        for first in range(0, height, rows):
            size = row_bytes * min(rows, height - first)
            band = decompressor.decompress(stream, size)
            if len(band) < size:
                raise ValueError("the compressed data are too short for the size")
            stream = decompressor.unconsumed_tail
            yield band
        # the checksum comes after the last row
        if decompressor.decompress(stream, 1):
            raise ValueError("the compressed data are too long for the size")
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof:
        raise ValueError("the checksum of the compressed data is missing")
