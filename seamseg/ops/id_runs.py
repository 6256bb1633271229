"""Maps of segment ids as runs: read from the compressed rows of a PNG, and compared, without a pixel being looked at.

An id map is made of long runs; 2 million pixels are some ten thousand of them. A run ends with its row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._library import define, implementations
from .reference import id_runs as plain


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
    starts: Tensor
    ids: Tensor

    def dense(self) -> np.ndarray:
        """The ids of all pixels, `H x W` uint32."""
        lengths = np.diff(self.starts.numpy(), append=self.height * self.width)
        return np.repeat(self.ids.numpy(), lengths).view(np.uint32).reshape(self.height, self.width)


def has_kernel() -> bool:
    """Whether there is a compiled decoder; the plain one is for checking, Pillow is faster."""
    return implementations()["decode_id_runs"] != "plain torch"


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
    data = torch.frombuffer(bytearray(stream), dtype=torch.uint8) if len(stream) else torch.empty(0, dtype=torch.uint8)
    try:
        starts, ids = _decode_id_runs(data, height, width)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return IdRuns(height, width, starts, ids)


def id_runs_of(ids: np.ndarray) -> IdRuns:
    """The runs of a map of ids, `H x W` of any integers from 0 to 2^31-1."""
    height, width = ids.shape
    first = np.ones((height, width), bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
    starts = np.flatnonzero(first)
    return IdRuns(
        height,
        width,
        torch.from_numpy(starts.astype(np.int32)),
        torch.from_numpy(ids.reshape(-1)[starts].astype(np.int32)),
    )


def joint_histogram_of_runs(a: IdRuns, b: IdRuns) -> tuple[np.ndarray, np.ndarray]:
    """How many pixels carry each pair of ids; see :func:`seamseg.ops.histogram.joint_histogram`.

    Raises
    ------
    ValueError
        if the sizes differ
    """
    if (a.height, a.width) != (b.height, b.width):
        raise ValueError(f"joint_histogram_of_runs: sizes differ, {a.height} x {a.width} and {b.height} x {b.width}")
    pairs, counts = _joint_histogram_of_runs(a.starts, a.ids, b.starts, b.ids, a.height * a.width)
    return pairs.numpy(), counts.numpy()


def _fake_decode(stream: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return stream.new_empty(count, dtype=torch.int32), stream.new_empty(count, dtype=torch.int32)


def _fake_histogram(
    a_starts: Tensor, a_ids: Tensor, b_starts: Tensor, b_ids: Tensor, total: int
) -> tuple[Tensor, Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return a_ids.new_empty((count, 2), dtype=torch.int64), a_ids.new_empty(count, dtype=torch.int64)


_decode_id_runs = define(
    "decode_id_runs(Tensor stream, int height, int width) -> (Tensor, Tensor)", plain.decode_id_runs, _fake_decode
)
_joint_histogram_of_runs = define(
    "joint_histogram_of_runs(Tensor a_starts, Tensor a_ids, Tensor b_starts, Tensor b_ids, int total)"
    " -> (Tensor, Tensor)",
    plain.joint_histogram_of_runs,
    _fake_histogram,
)
