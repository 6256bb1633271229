"""Maps of segment ids as runs: read from the compressed rows of a PNG, and compared, without a pixel being looked at.

An id map is made of long runs; 2 million pixels are some ten thousand of them. A run ends with its row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seamseg.idmaps import library, plain


@dataclass(frozen=True)
class IdRuns:
    """A map of `height x width` ids.

    Attributes
    ----------
    starts : `K` int32, index of the first pixel of each run, row by row; rising, with the first pixel of every row
    ids : `K` int32
    """

    height: int
    width: int
    starts: np.ndarray
    ids: np.ndarray

    def dense(self) -> np.ndarray:
        """The ids of all pixels, `H x W` uint32."""
        lengths = np.diff(self.starts, append=self.height * self.width)
        return np.repeat(self.ids, lengths).view(np.uint32).reshape(self.height, self.width)

    def boxes(self, count: int) -> np.ndarray:
        """The box of each id below `count`, `count x 4` int64 (y0, x0, y1, x1); -1 for ids without a pixel."""
        y, x0 = np.divmod(self.starts.astype(np.int64), self.width)
        x1 = np.append(x0[1:], 0)
        x1[x1 == 0] = self.width  # the next run begins a row
        order = np.argsort(self.ids, kind="stable")
        ids, first = np.unique(self.ids[order], return_index=True)
        boxes = np.full((count, 4), -1, np.int64)
        known = ids < count
        for k, (join, values) in enumerate(((np.minimum, y), (np.minimum, x0), (np.maximum, y + 1), (np.maximum, x1))):
            boxes[ids[known], k] = join.reduceat(values[order], first)[known]
        return boxes


def has_kernel() -> bool:
    """Whether there is a compiled decoder; the plain one is for checking, Pillow is faster."""
    return library.functions is not None


def decode_id_runs(stream: bytes | bytearray | memoryview, height: int, width: int) -> IdRuns:
    """The ids of a PNG of three channels of 8 bits, not interlaced.

    Parameters
    ----------
    stream : what the `IDAT` chunks hold together: rows with their filters, compressed
    height, width : of the picture, less than 2^31 pixels

    Returns
    -------
    runs : of R + 256 G + 65536 B

    Raises
    ------
    ValueError
        if the stream is broken, its checksum is wrong or it is of another size
    """
    return IdRuns(height, width, *(library.functions or plain).decode_id_runs(bytes(stream), height, width))


def id_runs_of(ids: np.ndarray) -> IdRuns:
    """The runs of a map of ids, `H x W` of any integers from 0 to 2^31-1."""
    height, width = ids.shape
    first = np.ones((height, width), bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
    starts = np.flatnonzero(first)
    return IdRuns(height, width, starts.astype(np.int32), ids.reshape(-1)[starts].astype(np.int32))


def joint_histogram_of_runs(a: IdRuns, b: IdRuns) -> tuple[np.ndarray, np.ndarray]:
    """How many pixels carry each pair of ids; see :func:`seamseg.idmaps.histogram.joint_histogram`.

    Raises
    ------
    ValueError
        if the sizes differ
    """
    if (a.height, a.width) != (b.height, b.width):
        raise ValueError(f"joint_histogram_of_runs: sizes differ, {a.height} x {a.width} and {b.height} x {b.width}")
    implementation = library.functions or plain
    return implementation.joint_histogram_of_runs(a.starts, a.ids, b.starts, b.ids, a.height * a.width)
