"""Conversion of the ground truth of a dataset folder to panoptic maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from seamseg.maps.idmaps.histogram import ArrayLike, as_array
from seamseg.maps.panoptic_map import VOID, SegmentInfo
from seamseg.utils.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Numbers: TypeAlias = "Sequence[int] | Tensor"


def flatten_layers(mask: ArrayLike) -> np.ndarray:
    """Merge layers `L x H x W` or `H x W` into one id map; the first layer with an id at a pixel wins; 0 is void."""
    array: np.ndarray = as_array(mask)
    if array.ndim == 2:
        return array
    flat: np.ndarray = array[0]
    if len(array) > 1:
        flat = flat.copy()
        for layer in array[1:]:
            np.copyto(flat, layer, where=flat == 0)
    return flat


def gt_segments_from_instances(
    mask: ArrayLike, cat: Numbers, iscrowd: Numbers, num_stuff: int, name: str = ""
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Convert the ground truth of a dataset folder to one panoptic map, `H x W` int32, 0 void, and its segments.

    `mask` are `L x H x W` or `H x W` instance ids, with class `cat` (255 void, stuff first) and crowd flag of each id,
    entry 0 void. The ids of a stuff class are merged into one segment, and so are the crowds of a thing class. Ids
    without a pixel are dropped. InputError, of the image `name`, if an id of the mask is missing in `cat`.
    """
    flat = flatten_layers(mask)
    _check_ids(int(flat.max(initial=0)), len(cat), name)
    lookup, kinds = _merge(cat, iscrowd, num_stuff)
    ids = lookup[flat]
    return ids, _segments_of(kinds, np.bincount(ids.ravel(), minlength=len(kinds)))


def gt_segments_from_pairs(
    pairs: np.ndarray, counts: np.ndarray, cat: Numbers, iscrowd: Numbers, num_stuff: int, name: str = ""
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Convert like :func:`gt_segments_from_instances`, given the joint histogram of the instance ids and another map.

    Returns the pairs with the ids of the segments in the first column, where pairs may occur more than once, and the
    segments.
    """
    _check_ids(int(pairs[:, 0].max(initial=0)), len(cat), name)
    lookup, kinds = _merge(cat, iscrowd, num_stuff)
    merged = pairs.copy()
    merged[:, 0] = lookup[pairs[:, 0]]
    areas = np.zeros(len(kinds), np.int64)
    np.add.at(areas, merged[:, 0], counts)
    return merged, _segments_of(kinds, areas)


def _merge(cat: Numbers, iscrowd: Numbers, num_stuff: int) -> tuple[np.ndarray, list[tuple[int, bool]]]:
    """Return the segment of each instance id (0 void), and class and crowd flag of each segment."""
    lookup = np.zeros(len(cat), np.int32)
    merged: dict[tuple[int, bool], int] = {}
    kinds: list[tuple[int, bool]] = [(VOID, False)]
    for i, kind in enumerate(zip((int(c) for c in cat), (bool(c) for c in iscrowd))):
        if i == 0 or kind[0] == VOID:
            continue
        if kind[0] < num_stuff or kind[1]:
            if kind not in merged:
                merged[kind] = len(kinds)
                kinds.append(kind)
            lookup[i] = merged[kind]
        else:
            lookup[i] = len(kinds)
            kinds.append(kind)
    return lookup, kinds


def _segments_of(kinds: Sequence[tuple[int, bool]], areas: np.ndarray) -> list[SegmentInfo]:
    return [
        SegmentInfo(i, *kind, area=area) for i, (kind, area) in enumerate(zip(kinds, areas.tolist())) if i and area > 0
    ]


def unmerged_segments(
    mask: ArrayLike, cat: Numbers, iscrowd: Numbers, name: str = ""
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Convert like the original program: each id is a segment, also without a pixel."""
    flat = flatten_layers(mask)
    classes = [int(c) for c in cat]
    _check_ids(int(flat.max(initial=0)), len(classes), name)
    segments = [
        SegmentInfo(i, classes[i], bool(crowd)) for i, crowd in enumerate(iscrowd) if i > 0 and classes[i] != VOID
    ]
    return flat, segments


def _check_ids(highest: int, known: int, name: str) -> None:
    if highest >= known:
        raise InputError(
            f"image {name}: the ground-truth mask has instance id {highest}, but classes are listed for ids 0 to "
            f"{known - 1}; prepare the data set again"
        )
