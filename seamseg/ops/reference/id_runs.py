"""Maps of segment ids as runs, in plain torch, numpy and zlib."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from .histogram import joint_histogram


def decode_id_runs(stream: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.id_runs.decode_id_runs`; RuntimeError if the stream is broken."""
    if stream.dtype != torch.uint8 or stream.dim() != 1:
        raise RuntimeError("decode_id_runs: stream must be bytes")
    if height <= 0 or width <= 0 or height * width >= 2**31:
        raise RuntimeError("decode_id_runs: 1 to 2^31-1 pixels")
    size = height * (3 * width + 1)
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(stream.cpu().numpy().tobytes(), size + 1)
    except zlib.error as error:
        raise RuntimeError(f"decode_id_runs: {error}") from None
    if len(data) != size or not inflater.eof:
        raise RuntimeError("decode_id_runs: the compressed data do not have the size")
    rows = np.frombuffer(data, np.uint8).reshape(height, 3 * width + 1)
    pixels = np.zeros((height + 1, width + 1, 3), np.uint8)
    for y in range(height):
        _undo_filter(int(rows[y, 0]), rows[y, 1:].reshape(width, 3), pixels[y], pixels[y + 1])
    ids = pixels[1:, 1:].astype(np.int32) @ np.array([1, 256, 65536], np.int32)
    starts = np.flatnonzero(np.diff(ids, axis=1, prepend=-1))
    return torch.from_numpy(starts.astype(np.int32)), torch.from_numpy(ids.ravel()[starts])


def joint_histogram_of_runs(
    a_starts: Tensor, a_ids: Tensor, b_starts: Tensor, b_ids: Tensor, total: int
) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.id_runs.joint_histogram_of_runs`."""
    maps = []
    for starts, ids in ((a_starts, a_ids), (b_starts, b_ids)):
        ends = torch.cat((starts[1:], starts.new_full((min(len(starts), 1),), total)))
        maps.append(ids.repeat_interleave(ends - starts))
    return joint_histogram(*maps)


def _undo_filter(kind: int, filtered: np.ndarray, above: np.ndarray, out: np.ndarray) -> None:
    """`filtered` is `W x 3`; `above` and `out` have a pixel of zeros before the first."""
    if kind == 0:
        out[1:] = filtered
    elif kind == 1:
        out[1:] = np.add.accumulate(filtered, 0, dtype=np.uint8)
    elif kind == 2:
        out[1:] = filtered + above[1:]
    elif kind in (3, 4):
        predict = _average if kind == 3 else _paeth
        for x in range(1, len(out)):
            guess = predict(*(v.astype(np.int64) for v in (out[x - 1], above[x], above[x - 1])))
            out[x] = (filtered[x - 1] + guess) & 255
    else:
        raise RuntimeError("decode_id_runs: a row has an unknown filter")


def _average(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a + b) // 2


def _paeth(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    to_a, to_b, to_c = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    return np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
