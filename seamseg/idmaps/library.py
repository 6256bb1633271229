"""The C functions of `csrc/maps`, called through ctypes without the GIL.

All arguments are checked here, so that the functions never read outside of their arrays.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from seamseg.idmaps.inflate import row_bands
from seamseg.utils.native import disabled_reason, find, load_failure, warn_missing

if TYPE_CHECKING:
    from seamseg.idmaps.upsampled import Axis

_MESSAGE_SIZE = 200  # kMessageSize in csrc/maps/answer.h
_INT64, _POINTER, _INT32 = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32


class Library:
    """A compiled library of `csrc/maps`; its functions raise ValueError for invalid arguments.

    Parameters
    ----------
    path : path of the file; OSError if it cannot be loaded, AttributeError if it is another library
    """

    def __init__(self, path: str | Path) -> None:
        c = ctypes.CDLL(str(path))
        self._begin = c.seamseg_begin_runs
        self._begin.argtypes = [_INT64, _INT64, _POINTER]
        self._add_rows = c.seamseg_add_rows
        self._add_rows.argtypes = [_POINTER, _POINTER, _INT64, _POINTER, _POINTER]
        self._pairs = c.seamseg_joint_histogram
        self._pairs.argtypes = [_POINTER, _INT32, _POINTER, _INT32, _INT64, _POINTER, _POINTER]
        self._pairs_of_runs = c.seamseg_joint_histogram_of_runs
        self._pairs_of_runs.argtypes = [
            _POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _POINTER, _POINTER
        ]  # fmt: skip
        for function in (self._begin, self._add_rows, self._pairs, self._pairs_of_runs):
            function.restype = _POINTER
        self._segments = _segment_functions(c)
        self._upsampled = _upsampling_functions(c)
        self._overlay, self._png_rows = c.seamseg_overlay, c.seamseg_png_rows
        self._overlay.argtypes = [
            _POINTER, _INT64, _INT64, _POINTER, _INT64, _INT64, *[_POINTER] * 4, _INT64, _INT32, _POINTER, _POINTER
        ]  # fmt: skip
        self._overlay.restype = _POINTER
        self._png_rows.argtypes = [_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER]
        self._png_rows.restype = None
        self._take_runs, self._take_pairs = c.seamseg_take_runs, c.seamseg_take_pairs
        for take in (self._take_runs, self._take_pairs):
            take.argtypes, take.restype = [_POINTER] * 3, None

    def decode_id_runs(self, stream: bytes, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return first pixel and id of each run, both `K` int32; see :func:`seamseg.idmaps.id_runs.decode_id_runs`."""
        height, width = _as_int64("height", height), _as_int64("width", width)
        row_bytes = 3 * width + 1
        # first, because it refuses sizes for which the C library would allocate too much
        bands = row_bands(stream, height, row_bytes)
        count, message = _INT64(0), ctypes.create_string_buffer(_MESSAGE_SIZE)
        runs = _checked("decode_id_runs", self._begin(height, width, message), message)
        try:
            for band in bands:
                result = self._add_rows(runs, band, len(band) // row_bytes, ctypes.byref(count), message)
                _checked("decode_id_runs", result, message)
        except BaseException:
            self._take_runs(runs, None, None)
            raise
        starts, ids = _copy_and_free(self._take_runs, runs, ((count.value,), np.int32), ((count.value,), np.int32))
        return starts, ids

    def joint_histogram(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sorted pairs, `K x 2` int64, and counts, `K` int64, of two integer arrays of the same shape."""
        if a.shape != b.shape:
            raise ValueError("joint_histogram: a and b must have the same shape")
        first, second = _native("a", a), _native("b", b)
        count, message = _INT64(0), ctypes.create_string_buffer(_MESSAGE_SIZE)
        arguments = (argument for x in (first, second) for argument in (x.ctypes.data, _dtype_code(x)))
        result = self._pairs(*arguments, first.size, ctypes.byref(count), message)
        return self._take(_checked("joint_histogram", result, message), count.value)

    def joint_histogram_of_runs(
        self, a_starts: np.ndarray, a_ids: np.ndarray, b_starts: np.ndarray, b_ids: np.ndarray, total: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the joint histogram of two maps of `total` pixels, given as runs."""
        runs = []
        for starts, ids in ((a_starts, a_ids), (b_starts, b_ids)):
            if starts.dtype != np.int32 or ids.dtype != np.int32 or starts.shape != ids.shape or starts.ndim != 1:
                raise ValueError("joint_histogram_of_runs: starts and ids must be int32 and of the same length")
            runs.append((np.require(starts, None, ("C", "A")), np.require(ids, None, ("C", "A"))))
        count, message = _INT64(0), ctypes.create_string_buffer(_MESSAGE_SIZE)
        arguments = (argument for s, i in runs for argument in (s.ctypes.data, i.ctypes.data, s.size))
        result = self._pairs_of_runs(*arguments, _as_int64("total", total), ctypes.byref(count), message)
        return self._take(_checked("joint_histogram_of_runs", result, message), count.value)

    def paste_masks(
        self, ids: np.ndarray, masks: np.ndarray, boxes: np.ndarray, overlap_threshold: float, keep_empty: bool
    ) -> np.ndarray:
        """See :func:`seamseg.idmaps.segments.paste_masks`."""
        target, message = np.require(ids, None, "C"), ctypes.create_string_buffer(_MESSAGE_SIZE)
        cells, corners, kept = np.ascontiguousarray(masks), np.ascontiguousarray(boxes), np.zeros(len(masks), bool)
        result = self._segments["paste_masks"](
            target.ctypes.data, *target.shape, cells.ctypes.data, corners.ctypes.data, *cells.shape,
            overlap_threshold, keep_empty, kept.ctypes.data, message
        )  # fmt: skip
        _checked("paste_masks", result, message)
        if target is not ids:
            ids[:] = target
        return kept

    def paste_mask(
        self, mask: np.ndarray, box: np.ndarray, size: tuple[int, int]
    ) -> tuple[np.ndarray, tuple[int, int, int, int]]:
        """See :func:`seamseg.idmaps.segments.paste_mask`."""
        cells, corners = np.ascontiguousarray(mask), np.ascontiguousarray(box)
        region, message = (ctypes.c_int64 * 4)(), ctypes.create_string_buffer(_MESSAGE_SIZE)
        self._segments["paste_region"](corners.ctypes.data, *cells.shape, *size, region)
        y0, x0, y1, x1 = region
        crop = np.zeros((y1 - y0, x1 - x0), bool)
        if crop.size:
            shapes = (*cells.shape, *size, crop.ctypes.data, message)
            result = self._segments["paste_mask"](cells.ctypes.data, corners.ctypes.data, *shapes)
            _checked("paste_mask", result, message)
        return crop, (y0, x0, y1, x1)

    def count_classes(self, classes: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        """See :func:`seamseg.idmaps.segments.count_classes`."""
        source, taken = np.ascontiguousarray(classes), None if ids is None else np.ascontiguousarray(ids)
        counts, taken_data = np.zeros(256, np.int64), None if taken is None else taken.ctypes.data
        self._segments["count_classes"](source.ctypes.data, taken_data, source.size, counts.ctypes.data)
        return counts

    def fill_free(self, ids: np.ndarray, classes: np.ndarray, id_of_class: np.ndarray) -> None:
        """See :func:`seamseg.idmaps.segments.fill_free`."""
        target, source, table = np.require(ids, None, "C"), np.ascontiguousarray(classes), id_of_class.copy()
        self._segments["fill_free"](target.ctypes.data, source.ctypes.data, source.size, table.ctypes.data)
        if target is not ids:
            ids[:] = target

    def areas_and_boxes(self, ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """See :func:`seamseg.idmaps.segments.areas_and_boxes`."""
        source, message = np.ascontiguousarray(ids), ctypes.create_string_buffer(_MESSAGE_SIZE)
        areas, boxes = np.zeros(n, np.int64), np.zeros((n, 4), np.float32)
        result = self._segments["segments"](
            source.ctypes.data, *source.shape, n, areas.ctypes.data, boxes.ctypes.data, message
        )
        _checked("areas_and_boxes", result, message)
        return areas, boxes

    def best_masks(
        self, logits: np.ndarray, scores: np.ndarray, rows: Axis, columns: Axis
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and `3 x K` areas, see :class:`seamseg.idmaps.upsampled.BestMasks`."""
        weights = np.ascontiguousarray(scores)
        numbers = np.empty((rows.first.size, columns.first.size), np.int16)
        areas = np.zeros((3, len(logits)), np.int64)
        self._upsample("best_masks", logits, rows, columns, (weights, numbers, areas))
        return numbers, areas

    def best_classes(self, logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
        """See :func:`seamseg.idmaps.upsampled.best_classes`."""
        classes = np.empty((rows.first.size, columns.first.size), np.uint8)
        self._upsample("best_classes", logits, rows, columns, (classes,))
        return classes

    def mask_boxes(self, logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
        """See :func:`seamseg.idmaps.upsampled.mask_boxes`."""
        boxes = np.empty((len(logits), 4), np.float32)
        self._upsample("mask_boxes", logits, rows, columns, (boxes,))
        return boxes

    def overlay(
        self,
        photo: np.ndarray,
        ids: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray | None,
        colors: np.ndarray,
        outlined: np.ndarray,
        share: int | None,
    ) -> np.ndarray:
        """See :func:`seamseg.idmaps.images.overlay`."""
        pixels, cells, lines, shown, flags = (
            np.require(x, None, ("C", "A")) for x in (photo, ids, rows, colors, outlined)
        )
        across = None if columns is None else np.require(columns, None, ("C", "A"))
        drawn, message = np.empty(pixels.shape, np.uint8), ctypes.create_string_buffer(_MESSAGE_SIZE)
        result = self._overlay(
            pixels.ctypes.data, *pixels.shape[:2], cells.ctypes.data, *cells.shape, lines.ctypes.data,
            None if across is None else across.ctypes.data, shown.ctypes.data, flags.ctypes.data, len(shown),
            -1 if share is None else share, drawn.ctypes.data, message
        )  # fmt: skip
        _checked("overlay", result, message)
        return drawn

    def png_rows(self, ids: np.ndarray, above: np.ndarray | None, values: np.ndarray | None) -> np.ndarray:
        """See :func:`seamseg.idmaps.images.png_rows`."""
        cells, (height, width) = np.require(ids, None, ("C", "A")), ids.shape
        before, table = (None if array is None else np.require(array, None, ("C", "A")) for array in (above, values))
        pointers = [None if array is None else array.ctypes.data for array in (before, table)]
        filtered, count = np.empty((height, 3 * width + 1), np.uint8), 0 if table is None else table.size
        self._png_rows(cells.ctypes.data, pointers[0], height, width, pointers[1], count, filtered.ctypes.data)
        return filtered

    def _upsample(
        self, name: str, logits: np.ndarray, rows: Axis, columns: Axis, arrays: tuple[np.ndarray, ...]
    ) -> None:
        cells, message = np.ascontiguousarray(logits), ctypes.create_string_buffer(_MESSAGE_SIZE)
        axes = [_Axis.of(axis) for axis in (rows, columns)]
        others = (array.ctypes.data for array in arrays)
        result = self._upsampled[name](cells.ctypes.data, *cells.shape, *map(ctypes.byref, axes), *others, message)
        _checked(name, result, message)

    def _take(self, result: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        pairs, counts = _copy_and_free(self._take_pairs, result, ((count, 2), np.int64), ((count,), np.int64))
        return pairs, counts


def _segment_functions(c: ctypes.CDLL) -> dict[str, Callable[..., Any]]:
    """Return the functions of `csrc/maps/segments.cpp` by name."""
    sizes = {
        "paste_masks": (
            _POINTER, _INT64, _INT64, _POINTER, _POINTER, _INT64, _INT64, _INT64, ctypes.c_double, _INT32, _POINTER,
            _POINTER
        ),
        "paste_region": (_POINTER, _INT64, _INT64, _INT64, _INT64, _POINTER),
        "paste_mask": (_POINTER, _POINTER, _INT64, _INT64, _INT64, _INT64, _POINTER, _POINTER),
        "count_classes": (_POINTER, _POINTER, _INT64, _POINTER),
        "fill_free": (_POINTER, _POINTER, _INT64, _POINTER),
        "segments": (_POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _POINTER),
    }  # fmt: skip
    found = {}
    for name, arguments in sizes.items():
        function = found[name] = getattr(c, f"seamseg_{name}")
        function.argtypes = list(arguments)
        function.restype = None if name in ("paste_region", "count_classes", "fill_free") else _POINTER
    return found


class _Axis(ctypes.Structure):
    """`Axis` of `csrc/maps/upsampled.cpp`."""

    _fields_ = [("first", _POINTER), ("weights", _POINTER), ("taps", _INT64), ("pixels", _INT64)]

    @classmethod
    def of(cls, axis: Axis) -> _Axis:
        """Return the structure, which reads the arrays of `axis`."""
        return cls(axis.first.ctypes.data, axis.weights.ctypes.data, *axis.weights.shape)


def _upsampling_functions(c: ctypes.CDLL) -> dict[str, Callable[..., Any]]:
    """Return the functions of `csrc/maps/upsampled.cpp` by name."""
    found = {}
    for name, arrays in (("best_masks", 3), ("best_classes", 1), ("mask_boxes", 1)):
        function = found[name] = getattr(c, f"seamseg_{name}")
        function.argtypes = [_POINTER, _INT64, _INT64, _INT64, *[_POINTER] * (arrays + 3)]
        function.restype = _POINTER
    return found


def _copy_and_free(
    take: Callable[..., None], result: int, *specs: tuple[tuple[int, ...], DTypeLike]
) -> list[np.ndarray]:
    """Copy a result to arrays of these shapes and dtypes and free it, even if the allocation fails."""
    try:
        arrays = [np.empty(*spec) for spec in specs]
    except BaseException:
        take(result, *[None] * len(specs))
        raise
    take(result, *(array.ctypes.data for array in arrays))
    return arrays


def _checked(name: str, result: int | None, message: ctypes.Array[ctypes.c_char]) -> int:
    if result is None:
        raise ValueError(f"{name}: {message.value.decode()}")
    return result


def _as_int64(name: str, value: int) -> int:
    """Check the range of an integer, which ctypes would truncate."""
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{name} must fit into 64 bits, got {number}")
    return number


def _native(name: str, labels: np.ndarray) -> np.ndarray:
    """Make an array contiguous, aligned and of native byte order; the same array if it is already."""
    if labels.dtype.kind not in "iub" or labels.dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"joint_histogram: {name} must hold integers, got {labels.dtype}")
    return np.require(labels, labels.dtype.newbyteorder("="), ("C", "A"))


def _dtype_code(labels: np.ndarray) -> int:
    return -labels.dtype.itemsize if labels.dtype.kind == "i" else labels.dtype.itemsize


def _load() -> tuple[Library | None, str]:
    """Load the compiled library; return it or None, and its state; warn if it is missing unexpectedly."""
    if disabled := disabled_reason():
        return None, disabled
    try:
        return Library(str(find("_maps").origin)), "loaded"
    except (ImportError, OSError, AttributeError) as error:
        reason = load_failure("_maps", error)
        warn_missing("functions for maps of ids", reason)
        return None, reason


functions, state = _load()
"""The functions or None; "loaded" or the reason why they are missing."""
