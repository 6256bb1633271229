"""Decompress the rows of a PNG in bands, so that memory does not grow with the image."""

from __future__ import annotations

from collections.abc import Iterator

from zlib_ng import zlib_ng as zlib  # several times as fast on id maps (docs/design/libraries.md)

BAND_BYTES = 1 << 18
_SLICE_BYTES = 1 << 16
"""Input is passed on in slices, because what remains of it is copied for each band."""
MAX_RATIO = 1032
"""A DEFLATE stream cannot decompress to more times its size."""


def row_bands(stream: bytes, height: int, row_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed rows of a zlib stream, a few whole rows of `row_bytes` with their filter byte at a time.

    ValueError if the stream is damaged or does not hold exactly `height` rows.
    """
    inflater, rows = Inflater(stream), max(1, BAND_BYTES // row_bytes)
    try:
        for first in range(0, height, rows):
            size = row_bytes * min(rows, height - first)
            band = inflater.read(size)
            if len(band) < size:
                raise ValueError("decode_id_runs: the compressed data are too short for the size")
            yield band
        # the checksum comes after the last row
        if inflater.read(1):
            raise ValueError("decode_id_runs: the compressed data are too long for the size")
    except zlib.error as error:  # type: ignore[misc]
        raise ValueError(f"decode_id_runs: {error}") from None
    if not inflater.decompressor.eof:
        raise ValueError("decode_id_runs: the checksum of the compressed data is missing")


class Inflater:
    """Reads a zlib stream in time linear in its size; what follows the end of its data is ignored."""

    def __init__(self, stream: bytes) -> None:
        self._stream, self._position = memoryview(stream), 0
        self._pending: bytes | memoryview = b""
        self.decompressor = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Return the next `size` decompressed bytes, fewer at the end; `zlib.error` if the data are damaged."""
        parts, left = [], size
        while left and not self.decompressor.eof:
            if not self._pending:
                end = self._position + _SLICE_BYTES
                self._pending, self._position = self._stream[self._position : end], end
            given = len(self._pending)
            part = self.decompressor.decompress(self._pending, left)
            self._pending = self.decompressor.unconsumed_tail
            if not part and not given:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
