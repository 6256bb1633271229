"""Id maps as runs, decoded from the compressed rows of a PNG and compared without expanding the pixels.

An id map of 2 million pixels has about ten thousand runs. A run ends at the end of its row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from zlib_ng import zlib_ng as zlib  # several times as fast on id maps (docs/design/libraries.md)

from seamseg.maps.idmaps import library, reference
from seamseg.maps.idmaps.histogram import pairs_of

BAND_BYTES = 1 << 18
_SLICE_BYTES = 1 << 16
"""Input is passed on in slices, because what remains of it is copied for each band."""
MAX_RATIO = 1032
"""A DEFLATE stream cannot decompress to more times its size."""


@dataclass(frozen=True)
class IdRuns:
    """An id map of `height x width` pixels as `K` runs.

    `starts`, `K` int32, sorted, has the first pixel of each run, counted row by row; `ids`, `K` int32, its id.
    """

    height: int
    width: int
    starts: np.ndarray
    ids: np.ndarray

    def dense(self) -> np.ndarray:
        """Expand the ids of all pixels, `H x W` uint32."""
        ids = np.repeat(self.ids, np.diff(self.starts, append=np.int32(self.height * self.width)))
        return ids.view(np.uint32).reshape(self.height, self.width)


def has_kernel() -> bool:
    """Return whether there is a compiled decoder, :func:`decode_id_runs`."""
    return library.functions is not None


def decode_id_runs(stream: bytes | bytearray | memoryview, height: int, width: int) -> IdRuns:
    """Decode the ids, R + 256 G + 65536 B, of a PNG with three 8-bit channels, not interlaced.

    `stream` is the concatenated content of its `IDAT` chunks: compressed, filtered rows of less than 2^31 pixels.
    ValueError if it is broken, its checksum is wrong or its size differs.
    """
    row_bytes = 3 * width + 1
    if height * row_bytes > MAX_RATIO * len(stream):  # the C library would allocate too much
        raise ValueError("decode_id_runs: the compressed data are too short for the size")
    count, runs = ctypes.c_int64(0), library.call("begin_runs", height, width)
    try:
        for band in row_bands(bytes(stream), height, row_bytes):
            library.call("add_rows", runs, band, len(band) // row_bytes, ctypes.byref(count))
    except BaseException:
        library.call("take_runs", runs, None, None)
        raise
    starts, ids = np.empty((2, count.value), np.int32)
    library.call("take_runs", runs, starts, ids)
    return IdRuns(height, width, starts, ids)


def id_runs_of(ids: np.ndarray) -> IdRuns:
    """Convert an id map to runs, `H x W` integers from 0 to 2^31-1."""
    height, width = ids.shape
    first = np.ones(ids.shape, bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
    return IdRuns(height, width, np.flatnonzero(first).astype(np.int32), ids[first].astype(np.int32))


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


Runs = tuple[np.ndarray, np.ndarray]
"""Start and length of runs of pixels of a map that is counted as one row, or down its columns."""


def runs_by_id(ids: np.ndarray) -> dict[int, Runs]:
    """Return the runs of each id (except 0) of a map, pixels counted along its rows; transpose it for its columns."""
    flat = np.ascontiguousarray(ids).ravel()
    start = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
    length = np.diff(start, append=flat.size)
    value = flat[start]
    order = np.argsort(value, kind="stable")
    order = order[np.searchsorted(value[order], 1) :]
    instances, first = np.unique(value[order], return_index=True)
    groups = np.split(order, first[1:]) if len(instances) else []
    return {int(instance): (start[group], length[group]) for instance, group in zip(instances, groups)}


def union_of_runs(parts: Sequence[Runs]) -> Runs:
    """Return the pixels that are in any of some runs."""
    start = np.concatenate([start for start, _ in parts])
    order = np.argsort(start, kind="stable")
    end = np.maximum.accumulate(np.concatenate([start + length for start, length in parts])[order])
    start = start[order]
    first = np.flatnonzero(np.append([True], start[1:] > end[:-1])[: len(start)])
    last = np.append(first[1:] - 1, len(end) - 1)[: len(first)]
    return start[first], end[last] - start[first]


def box_of_runs(start: np.ndarray, length: np.ndarray, height: int) -> list[int]:
    """Return the box, x, y, width and height, of runs down the columns of a map of some height."""
    last = start + length - 1
    x0, x1 = start[0] // height, last[-1] // height
    # a run that continues in the next column touches the bottom and the top row
    wraps = bool((last // height > start // height).any())
    y0 = 0 if wraps else (start % height).min()
    y1 = height - 1 if wraps else (last % height).max()
    return [int(x0), int(y0), int(x1 - x0 + 1), int(y1 - y0 + 1)]


def joint_histogram_of_runs(a: IdRuns, b: IdRuns) -> tuple[np.ndarray, np.ndarray]:
    """Count the pixels with each pair of ids; see :func:`seamseg.maps.idmaps.histogram.joint_histogram`."""
    if (a.height, a.width) != (b.height, b.width):
        raise ValueError(f"joint_histogram_of_runs: sizes differ, {a.height} x {a.width} and {b.height} x {b.width}")
    if library.functions is None:
        return reference.joint_histogram(a.dense(), b.dense())
    runs = a.starts, a.ids, a.starts.size, b.starts, b.ids, b.starts.size
    return pairs_of("joint_histogram_of_runs", *runs, a.height * a.width)
