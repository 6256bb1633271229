"""From masks or classes on a coarse grid to the best of them at each pixel, in numpy or the C library, without torch.

Logits are resized bilinearly as by torch (align_corners off): to the padded input of the network, whose valid part
is the image, and from there to the size of the image. Both steps are one weighted sum along each axis. No mask is ever
made at the size of the image.
"""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.maps.idmaps import library, reference
from seamseg.maps.idmaps.reference import Axis

Size = tuple[int, int]
"""`(height, width)`."""
MAX_SIDE = 1 << 24
"""Pixels of an axis, which are counted in float32."""


@dataclass(frozen=True)
class BestMasks:
    """The best mask of each pixel, and areas of the masks in pixels, `K` int64; `p` is the probability of mask k."""

    numbers: np.ndarray
    """`H x W` int16, k + 1 where mask k is the best and p >= .5, else 0."""
    mask_areas: np.ndarray
    """Where mask k is the best, whatever p: detectron2's `mask_area`."""
    original_areas: np.ndarray
    """Where p >= .5: detectron2's `original_area`."""
    segment_areas: np.ndarray
    """Where both hold: the pixels of k + 1 in `numbers`."""


def best_masks(logits: np.ndarray, scores: np.ndarray, padded_size: Size, size: Size, native_size: Size) -> BestMasks:
    """Find the mask with the best score x probability of each pixel, the first of equals.

    `logits` are `K x h x w` float32 of the whole padded input, where NaN belongs to no mask, and `scores` `K` float32,
    positive. `padded_size` and `size` are `(height, width)` of the padded input and of its upper left part with the
    image, `native_size` is that of the result. ValueError for arguments of another type or shape.
    """
    rows, columns = _axes("best_masks", logits, padded_size, size, native_size)
    if scores.shape != logits.shape[:1] or scores.dtype != np.float32:
        raise ValueError(f"best_masks: scores must be {len(logits)} float32, got {scores.shape} {scores.dtype}")
    if len(logits) > np.iinfo(np.int16).max:
        raise ValueError(f"best_masks: at most {np.iinfo(np.int16).max} masks, got {len(logits)}")
    if library.functions is None:
        numbers, areas = reference.best_masks(logits, scores, rows, columns)
    else:
        numbers, areas = np.empty(native_size, np.int16), np.zeros((3, len(logits)), np.int64)
        library.call("best_masks", *_in_c(logits, rows, columns), scores, numbers, areas)
    return BestMasks(numbers, *areas)


def best_classes(logits: np.ndarray, padded_size: Size, size: Size) -> np.ndarray:
    """Return the class with the highest logit of each pixel, uint8 of `size`, the first of equals; 0 if all are NaN.

    `logits` are `C x h x w` float32 of 1 to 256 classes; otherwise as :func:`best_masks`.
    """
    axes = _axes("best_classes", logits, padded_size, size, size)
    if not 1 <= len(logits) <= 256:
        raise ValueError(f"best_classes: logits must be of 1 to 256 classes, got {len(logits)}")
    if library.functions is None:
        return reference.best_classes(logits, *axes)
    classes = np.empty(size, np.uint8)
    library.call("best_classes", *_in_c(logits, *axes), classes)
    return classes


def mask_boxes(logits: np.ndarray, padded_size: Size, size: Size) -> np.ndarray:
    """Return the box `(y0, x0, y1, x1)`, `K x 4` float32, of the pixels of each mask with a probability of at least .5.

    Boxes of masks without pixels are -1; otherwise as :func:`best_masks`.
    """
    axes = _axes("mask_boxes", logits, padded_size, size, size)
    if library.functions is None:
        return reference.mask_boxes(logits, *axes)
    boxes = np.empty((len(logits), 4), np.float32)
    library.call("mask_boxes", *_in_c(logits, *axes), boxes)
    return boxes


def _axes(function: str, logits: np.ndarray, padded_size: Size, size: Size, native_size: Size) -> tuple[Axis, Axis]:
    if logits.ndim != 3 or logits.dtype != np.float32:
        raise ValueError(f"{function}: logits must be float32 with 3 dimensions, got {logits.shape} {logits.dtype}")
    if min(logits.shape[1:]) < 1:
        raise ValueError(f"{function}: logits must not be empty, got {logits.shape}")
    axes = []
    for cells, *sides in zip(logits.shape[1:], padded_size, size, native_size, strict=True):
        padded, valid, pixels = map(operator.index, sides)
        if not 0 < valid <= padded <= MAX_SIDE or not 0 < pixels <= MAX_SIDE:
            raise ValueError(
                f"{function}: sizes must be 1 to {MAX_SIDE} and the valid one inside the padded one, got padded "
                f"{padded_size}, valid {size}, result {native_size}"
            )
        axes.append(Axis.of(cells, padded, valid, pixels))
    return axes[0], axes[1]


class _Axis(ctypes.Structure):
    """`Axis` of `csrc/maps/upsampled.cpp`."""

    _fields_ = [
        ("first", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("taps", ctypes.c_int64),
        ("pixels", ctypes.c_int64),
    ]


def _in_c(logits: np.ndarray, *axes: Axis) -> tuple[Any, ...]:
    """Return logits and axes as arguments of the C library, which read the arrays of `axes`."""
    made = [_Axis(axis.first.ctypes.data, axis.weights.ctypes.data, *axis.weights.shape) for axis in axes]
    return (logits, *logits.shape, *map(ctypes.byref, made))
