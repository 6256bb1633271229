"""Reference implementation of `csrc/maps` in numpy, also used if it was not compiled."""

from __future__ import annotations

import numpy as np

from seamseg.idmaps.inflate import row_bands


def decode_id_runs(stream: bytes, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first pixel and id of each run; see :func:`seamseg.idmaps.id_runs.decode_id_runs`."""
    if height <= 0 or width <= 0 or height * width >= 2**31:
        raise ValueError("decode_id_runs: height x width must be 1 to 2^31-1 pixels")
    data = b"".join(row_bands(stream, height, 3 * width + 1))
    rows = np.frombuffer(data, np.uint8).reshape(height, 3 * width + 1)
    pixels = np.zeros((height + 1, width + 1, 3), np.uint8)
    for y in range(height):
        _undo_filter(int(rows[y, 0]), rows[y, 1:].reshape(width, 3), pixels[y], pixels[y + 1])
    ids = pixels[1:, 1:].astype(np.int32) @ np.array([1, 256, 65536], np.int32)
    starts = np.flatnonzero(np.diff(ids, axis=1, prepend=-1))
    return starts.astype(np.int32), ids.ravel()[starts]


def joint_histogram_of_runs(
    a_starts: np.ndarray, a_ids: np.ndarray, b_starts: np.ndarray, b_ids: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    """Count pairs of ids; see :func:`seamseg.idmaps.id_runs.joint_histogram_of_runs`."""
    maps = ((a_starts, a_ids), (b_starts, b_ids))
    a, b = (np.repeat(ids, np.diff(starts, append=np.int64(total))) for starts, ids in maps)
    return joint_histogram(a, b)


def joint_histogram(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count pairs of labels; see :func:`seamseg.idmaps.histogram.joint_histogram`, also for negative labels.

    Label maps consist of long runs, so only the starts of runs are sorted.
    """
    first, second = (x.reshape(-1).astype(np.int64) for x in (a, b))
    if first.size == 0:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    change = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    start = np.append(0, 1 + np.flatnonzero(change))
    length = np.diff(start, append=first.size)
    # pair the ranks of the labels, which cannot overflow
    left, left_rank = np.unique(first[start], return_inverse=True)
    right, right_rank = np.unique(second[start], return_inverse=True)
    keys, where = np.unique(left_rank * right.size + right_rank, return_inverse=True)
    counts = np.zeros(keys.size, np.int64)
    np.add.at(counts, where, length)
    return np.stack((left[keys // right.size], right[keys % right.size]), 1), counts


def _undo_filter(kind: int, filtered: np.ndarray, above: np.ndarray, out: np.ndarray) -> None:
    """Undo the PNG filter of a row, `W x 3`; `above` and `out` have a zero pixel before the first."""
    if kind == 0:
        out[1:] = filtered
    elif kind == 1:
        out[1:] = np.add.accumulate(filtered, 0, dtype=np.uint8)
    elif kind == 2:
        out[1:] = filtered + above[1:]
    elif kind in (3, 4):
        predict = _average if kind == 3 else _paeth
        for x in range(1, len(out)):
            prediction = predict(*(v.astype(np.int64) for v in (out[x - 1], above[x], above[x - 1])))
            out[x] = (filtered[x - 1] + prediction) & 255
    else:
        raise ValueError("decode_id_runs: a row has an unknown filter")


def _average(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    average: np.ndarray = (a + b) // 2
    return average


def _paeth(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    to_a, to_b, to_c = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    nearest: np.ndarray = np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
    return nearest
