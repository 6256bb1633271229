"""The C functions of `csrc/maps`, called through ctypes without the GIL.

The functions of :mod:`.histogram`, :mod:`.id_runs`, :mod:`.segments` and :mod:`.upsampled` check the arguments, so that
those of C never read outside of their arrays.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seamseg.maps.idmaps.inflate import MAX_RATIO, row_bands
from seamseg.utils.native import disabled_reason, find, load_failure, warn_missing

if TYPE_CHECKING:
    from seamseg.maps.idmaps.reference import Axis

_MESSAGE_SIZE = 200  # kMessageSize in csrc/maps/answer.h
_INT64, _POINTER, _INT32 = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
_UPSAMPLED = (_POINTER, *[_INT64] * 3, *[_POINTER] * 2)
"""Logits with their shape, and the axes of rows and columns."""

_CHECKED: dict[str, tuple[type, ...]] = {
    "begin_runs": (_INT64, _INT64),
    "add_rows": (_POINTER, _POINTER, _INT64, _POINTER),
    "joint_histogram": (_POINTER, _INT32, _POINTER, _INT32, _INT64, _POINTER),
    "joint_histogram_of_runs": (_POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _POINTER),
    "paste_masks": (
        *(_POINTER, _INT64, _INT64, _POINTER, _POINTER, _INT64, _INT64, _INT64),
        *(ctypes.c_double, _INT32, _POINTER),
    ),
    "paste_mask": (_POINTER, _POINTER, *[_INT64] * 4, _POINTER),
    "segments": (_POINTER, *[_INT64] * 3, _POINTER, _POINTER),
    "overlay": (_POINTER, _INT64, _INT64, _POINTER, _INT64, _INT64, *[_POINTER] * 4, _INT64, _INT32, _POINTER),
    "best_masks": (*_UPSAMPLED, _POINTER, _POINTER, _POINTER),
    "best_classes": (*_UPSAMPLED, _POINTER),
    "mask_boxes": (*_UPSAMPLED, _POINTER),
}
"""Arguments of the functions that return NULL for an error, but for the last one, the message."""
_UNCHECKED: dict[str, tuple[type, ...]] = {
    "paste_region": (_POINTER, *[_INT64] * 4, _POINTER),
    "count_classes": (_POINTER, _POINTER, _INT64, _POINTER),
    "fill_free": (_POINTER, _POINTER, _INT64, _POINTER),
    "png_rows": (_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER),
    "take_runs": (_POINTER, _POINTER, _POINTER),
    "take_pairs": (_POINTER, _POINTER, _POINTER),
}
"""Arguments of the functions without a result."""
_PUBLIC_NAMES = {"begin_runs": "decode_id_runs", "add_rows": "decode_id_runs", "segments": "areas_and_boxes"}
"""Names in messages that differ from those in C."""


class Library:
    """A compiled library of `csrc/maps`; its functions raise ValueError for invalid arguments.

    Parameters
    ----------
    path : path of the file; OSError if it cannot be loaded, AttributeError if it is another library
    """

    def __init__(self, path: str | Path) -> None:
        c = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for name, arguments in {**_CHECKED, **_UNCHECKED}.items():
            function = self._functions[name] = getattr(c, f"seamseg_{name}")
            function.argtypes = [*arguments, _POINTER] if name in _CHECKED else list(arguments)
            function.restype = _POINTER if name in _CHECKED else None

    def _call(self, name: str, *arguments: Any) -> int:
        """Call a function; arrays are passed as pointers, and copied before if they are not contiguous."""
        arrays = [_contiguous(x) if isinstance(x, np.ndarray) else x for x in arguments]
        passed = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in arrays]
        if name in _UNCHECKED:
            self._functions[name](*passed)
            return 0
        message = ctypes.create_string_buffer(_MESSAGE_SIZE)
        result: int | None = self._functions[name](*passed, message)
        if result is None:
            raise ValueError(f"{_PUBLIC_NAMES.get(name, name)}: {message.value.decode()}")
        return result

    def decode_id_runs(self, stream: bytes, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return first pixel and id of each run, both `K` int32; see :func:`.id_runs.decode_id_runs`."""
        row_bytes = 3 * width + 1
        if height * row_bytes > MAX_RATIO * len(stream):  # the C library would allocate too much
            raise ValueError("decode_id_runs: the compressed data are too short for the size")
        count, runs = _INT64(0), self._call("begin_runs", height, width)
        try:
            for band in row_bands(stream, height, row_bytes):
                self._call("add_rows", runs, band, len(band) // row_bytes, ctypes.byref(count))
        except BaseException:
            self._call("take_runs", runs, None, None)
            raise
        starts, ids = np.empty((2, count.value), np.int32)
        self._call("take_runs", runs, starts, ids)
        return starts, ids

    def joint_histogram(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sorted pairs, `K x 2` int64, and counts, `K` int64, of two integer arrays of the same shape."""
        first, second = (np.asarray(labels, labels.dtype.newbyteorder("=")) for labels in (a, b))
        arguments = first, _dtype_code(first), second, _dtype_code(second), first.size
        return self._pairs("joint_histogram", *arguments)

    def joint_histogram_of_runs(
        self, a_starts: np.ndarray, a_ids: np.ndarray, b_starts: np.ndarray, b_ids: np.ndarray, total: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the joint histogram of two maps of `total` pixels, given as runs."""
        runs = a_starts, a_ids, a_starts.size, b_starts, b_ids, b_starts.size
        return self._pairs("joint_histogram_of_runs", *runs, total)

    def _pairs(self, name: str, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        count = _INT64(0)
        found = self._call(name, *arguments, ctypes.byref(count))
        pairs, counts = np.empty((count.value, 2), np.int64), np.empty(count.value, np.int64)
        self._call("take_pairs", found, pairs, counts)
        return pairs, counts

    def paste_masks(
        self, ids: np.ndarray, masks: np.ndarray, boxes: np.ndarray, overlap_threshold: float, keep_empty: bool
    ) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.segments.paste_masks`."""
        target, kept = _contiguous(ids), np.zeros(len(masks), bool)
        self._call("paste_masks", target, *ids.shape, masks, boxes, *masks.shape, overlap_threshold, keep_empty, kept)
        if target is not ids:
            ids[:] = target
        return kept

    def paste_mask(
        self, mask: np.ndarray, box: np.ndarray, size: tuple[int, int]
    ) -> tuple[np.ndarray, tuple[int, int, int, int]]:
        """See :func:`seamseg.maps.idmaps.segments.paste_mask`."""
        region = np.zeros(4, np.int64)
        self._call("paste_region", box, *mask.shape, *size, region)
        y0, x0, y1, x1 = region.tolist()
        crop = np.zeros((y1 - y0, x1 - x0), bool)
        if crop.size:
            self._call("paste_mask", mask, box, *mask.shape, *size, crop)
        return crop, (y0, x0, y1, x1)

    def count_classes(self, classes: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.segments.count_classes`."""
        counts = np.zeros(256, np.int64)
        self._call("count_classes", classes, ids, classes.size, counts)
        return counts

    def fill_free(self, ids: np.ndarray, classes: np.ndarray, id_of_class: np.ndarray) -> None:
        """See :func:`seamseg.maps.idmaps.segments.fill_free`."""
        target = _contiguous(ids)
        self._call("fill_free", target, classes, classes.size, id_of_class)
        if target is not ids:
            ids[:] = target

    def areas_and_boxes(self, ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """See :func:`seamseg.maps.idmaps.segments.areas_and_boxes`."""
        areas, boxes = np.zeros(n, np.int64), np.zeros((n, 4), np.float32)
        self._call("segments", ids, *ids.shape, n, areas, boxes)
        return areas, boxes

    def best_masks(
        self, logits: np.ndarray, scores: np.ndarray, rows: Axis, columns: Axis
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and `3 x K` areas, see :class:`seamseg.maps.idmaps.upsampled.BestMasks`."""
        numbers = np.empty((rows.first.size, columns.first.size), np.int16)
        areas = np.zeros((3, len(logits)), np.int64)
        self._upsample("best_masks", logits, rows, columns, scores, numbers, areas)
        return numbers, areas

    def best_classes(self, logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.upsampled.best_classes`."""
        classes = np.empty((rows.first.size, columns.first.size), np.uint8)
        self._upsample("best_classes", logits, rows, columns, classes)
        return classes

    def mask_boxes(self, logits: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.upsampled.mask_boxes`."""
        boxes = np.empty((len(logits), 4), np.float32)
        self._upsample("mask_boxes", logits, rows, columns, boxes)
        return boxes

    def _upsample(self, name: str, logits: np.ndarray, rows: Axis, columns: Axis, *arrays: np.ndarray) -> None:
        axes = [_Axis.of(axis) for axis in (rows, columns)]
        self._call(name, logits, *logits.shape, *map(ctypes.byref, axes), *arrays)

    def overlay(
        self,
        image: np.ndarray,
        ids: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray | None,
        colors: np.ndarray,
        outlined: np.ndarray,
        share: int | None,
    ) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.segments.overlay`."""
        drawn, opacity = np.empty(image.shape, np.uint8), -1 if share is None else share
        maps = (image, *image.shape[:2], ids, *ids.shape)
        self._call("overlay", *maps, rows, columns, colors, outlined, len(colors), opacity, drawn)
        return drawn

    def png_rows(self, ids: np.ndarray, above: np.ndarray | None, values: np.ndarray | None) -> np.ndarray:
        """See :func:`seamseg.maps.idmaps.segments.png_rows`."""
        height, width = ids.shape
        filtered = np.empty((height, 3 * width + 1), np.uint8)
        self._call("png_rows", ids, above, height, width, values, 0 if values is None else values.size, filtered)
        return filtered


class _Axis(ctypes.Structure):
    """`Axis` of `csrc/maps/upsampled.cpp`."""

    _fields_ = [("first", _POINTER), ("weights", _POINTER), ("taps", _INT64), ("pixels", _INT64)]

    @classmethod
    def of(cls, axis: Axis) -> _Axis:
        """Return the structure, which reads the arrays of `axis`."""
        return cls(axis.first.ctypes.data, axis.weights.ctypes.data, *axis.weights.shape)


def _contiguous(array: np.ndarray) -> np.ndarray:
    """Return an array contiguous and aligned; the same array if it is already."""
    return array if array.flags.c_contiguous and array.flags.aligned else np.require(array, None, ("C", "A"))


def _dtype_code(labels: np.ndarray) -> int:
    return -labels.dtype.itemsize if labels.dtype.kind == "i" else labels.dtype.itemsize


def _load() -> tuple[Library | None, str]:
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
