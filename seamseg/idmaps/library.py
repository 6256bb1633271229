"""The C functions of `csrc/maps`, called through ctypes: arrays in, arrays out, Python's lock left meanwhile.

What they are given is checked here: they may be called with anything, and read no byte outside of their arrays.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from seamseg.idmaps.inflate import row_bands
from seamseg.utils.native import disabled_reason, find, load_failure, warn_missing

_WORDS = 200  # kWords in csrc/maps/answer.h
_NUMBER, _POINTER, _KIND = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32


class Library:
    """A compiled file of `csrc/maps`; ValueError says what is wrong with arguments.

    Parameters
    ----------
    path : of the file; OSError if it cannot be loaded, AttributeError if it is another one
    """

    def __init__(self, path: str | Path) -> None:
        c = ctypes.CDLL(str(path))
        self._begin = c.seamseg_begin_runs
        self._begin.argtypes = [_NUMBER, _NUMBER, _POINTER]
        self._add_rows = c.seamseg_add_rows
        self._add_rows.argtypes = [_POINTER, _POINTER, _NUMBER, _POINTER, _POINTER]
        self._pairs = c.seamseg_joint_histogram
        self._pairs.argtypes = [_POINTER, _KIND, _POINTER, _KIND, _NUMBER, _POINTER, _POINTER]
        self._pairs_of_runs = c.seamseg_joint_histogram_of_runs
        self._pairs_of_runs.argtypes = [
            _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER
        ]  # fmt: skip
        for function in (self._begin, self._add_rows, self._pairs, self._pairs_of_runs):
            function.restype = _POINTER
        self._take_runs, self._take_pairs = c.seamseg_take_runs, c.seamseg_take_pairs
        for take in (self._take_runs, self._take_pairs):
            take.argtypes, take.restype = [_POINTER] * 3, None

    def decode_id_runs(self, stream: bytes, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """First pixel and id of each run, `K` int32 both; see :func:`seamseg.idmaps.id_runs.decode_id_runs`."""
        height, width = _within("height", height), _within("width", width)
        row_bytes = 3 * width + 1
        bands = row_bands(bytes(stream), height, row_bytes)
        count, words = _NUMBER(0), ctypes.create_string_buffer(_WORDS)
        runs = _checked("decode_id_runs", self._begin(height, width, words), words)
        try:
            for band in bands:
                added = self._add_rows(runs, band, len(band) // row_bytes, ctypes.byref(count), words)
                _checked("decode_id_runs", added, words)
        except BaseException:
            self._take_runs(runs, None, None)
            raise
        starts, ids = _taken(self._take_runs, runs, ((count.value,), np.int32), ((count.value,), np.int32))
        return starts, ids

    def joint_histogram(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs, `K x 2` int64, rising, and counts, `K` int64, of integers of one shape."""
        if a.shape != b.shape:
            raise ValueError("joint_histogram: a and b must have one shape")
        first, second = _native("a", a), _native("b", b)
        count, words = _NUMBER(0), ctypes.create_string_buffer(_WORDS)
        sides = (side for x in (first, second) for side in (x.ctypes.data, _kind(x)))
        found = self._pairs(*sides, first.size, ctypes.byref(count), words)
        return self._take(_checked("joint_histogram", found, words), count.value)

    def joint_histogram_of_runs(
        self, a_starts: np.ndarray, a_ids: np.ndarray, b_starts: np.ndarray, b_ids: np.ndarray, total: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs and counts of two maps of `total` pixels, each as :meth:`decode_id_runs` returns it."""
        runs = []
        for starts, ids in ((a_starts, a_ids), (b_starts, b_ids)):
            if starts.dtype != np.int32 or ids.dtype != np.int32 or starts.shape != ids.shape or starts.ndim != 1:
                raise ValueError("joint_histogram_of_runs: starts and ids must be int32 and as many")
            runs.append((np.require(starts, None, ("C", "A")), np.require(ids, None, ("C", "A"))))
        count, words = _NUMBER(0), ctypes.create_string_buffer(_WORDS)
        sides = (side for s, i in runs for side in (s.ctypes.data, i.ctypes.data, s.size))
        found = self._pairs_of_runs(*sides, _within("total", total), ctypes.byref(count), words)
        return self._take(_checked("joint_histogram_of_runs", found, words), count.value)

    def _take(self, found: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        pairs, counts = _taken(self._take_pairs, found, ((count, 2), np.int64), ((count,), np.int64))
        return pairs, counts


def _taken(take: Callable[..., None], found: int, *kinds: tuple[tuple[int, ...], DTypeLike]) -> list[np.ndarray]:
    """Copy the arrays of a result, of these shapes and dtypes, and free it, also if the allocation fails."""
    try:
        arrays = [np.empty(*kind) for kind in kinds]
    except BaseException:
        take(found, *[None] * len(kinds))
        raise
    take(found, *(array.ctypes.data for array in arrays))
    return arrays


def _checked(name: str, found: int | None, words: ctypes.Array[ctypes.c_char]) -> int:
    if found is None:
        raise ValueError(f"{name}: {words.value.decode()}")
    return found


def _within(name: str, value: int) -> int:
    """Return a number that fits into int64: ctypes would truncate a larger one."""
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{name} must fit into 64 bits, got {number}")
    return number


def _native(name: str, labels: np.ndarray) -> np.ndarray:
    """Without gaps, at an even address and in the processor's own order of bytes; the same array if it is so."""
    if labels.dtype.kind not in "iub" or labels.dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"joint_histogram: {name} must hold integers, got {labels.dtype}")
    return np.require(labels, labels.dtype.newbyteorder("="), ("C", "A"))


def _kind(labels: np.ndarray) -> int:
    return -labels.dtype.itemsize if labels.dtype.kind == "i" else labels.dtype.itemsize


def _load() -> tuple[Library | None, str]:
    """Return the compiled library, or None, and its state as text; warn if it is expected and missing."""
    if unwanted := disabled_reason():
        return None, unwanted
    try:
        return Library(str(find("_maps").origin)), "loaded"
    except (ImportError, OSError, AttributeError) as error:
        reason = load_failure("_maps", error)
        warn_missing("functions for maps of ids", reason)
        return None, reason


functions, state = _load()
"""The functions, None without them; "loaded", or why they are not there."""
