"""Ground truth of a dataset folder and results of the network as maps that can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from seamseg.errors import InputError
from seamseg.evaluation.matching import SegmentInfo
from seamseg.structures import VOID


def flatten_layers(mask: np.ndarray | Tensor) -> np.ndarray:
    """One id map of overlapping layers: where several claim a pixel, the first has it.

    Parameters
    ----------
    mask : `L x H x W` or `H x W` integer, 0 void

    Returns
    -------
    ids : `H x W`
    """
    array = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    if array.ndim == 2:
        return array
    flat = array[0]
    for layer in array[1:]:
        flat = np.where(flat == 0, layer, flat)
    return flat


def gt_segments_from_instances(
    mask: np.ndarray | Tensor,
    cat: Sequence[int] | Tensor,
    iscrowd: Sequence[int] | Tensor,
    num_stuff: int,
    name: str = "",
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Ground truth of the folder format as one panoptic map.

    An image has one segment of each stuff class and one crowd of each thing class, so the ids of one class are merged
    there. Ids without a pixel are left out.

    Parameters
    ----------
    mask : `L x H x W` or `H x W` instance ids, 0 void
    cat, iscrowd : class (255 void) and crowd flag of each id; entry 0 is void
    num_stuff : stuff classes, which come before the things
    name : of the image, for errors

    Returns
    -------
    ids : `H x W` int32, 0 void
    segments : in the order of their ids, with areas

    Raises
    ------
    InputError
        if the mask has an id that `cat` lacks
    """
    flat = flatten_layers(mask)
    classes = [int(c) for c in cat]
    crowds = [bool(c) for c in iscrowd]
    _check_ids(flat, len(classes), name)
    lookup = np.zeros(len(classes), np.int32)
    merged: dict[tuple[int, bool], int] = {}
    kinds: list[tuple[int, bool]] = [(VOID, False)]
    for i in range(1, len(classes)):
        kind = classes[i], crowds[i]
        if classes[i] == VOID:
            continue
        if classes[i] < num_stuff or crowds[i]:
            if kind not in merged:
                merged[kind] = len(kinds)
                kinds.append(kind)
            lookup[i] = merged[kind]
        else:
            lookup[i] = len(kinds)
            kinds.append(kind)
    ids = lookup[flat]
    areas = np.bincount(ids.ravel(), minlength=len(kinds)).tolist()
    segments = [SegmentInfo(i, *kinds[i], area=areas[i]) for i in range(1, len(kinds)) if areas[i] > 0]
    return ids, segments


def instances_as_they_are(
    mask: np.ndarray | Tensor, cat: Sequence[int] | Tensor, iscrowd: Sequence[int] | Tensor, name: str = ""
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """As :func:`gt_segments_from_instances`, but each id stays a segment, also without a pixel (the original's way)."""
    flat = flatten_layers(mask)
    classes = [int(c) for c in cat]
    _check_ids(flat, len(classes), name)
    segments = [
        SegmentInfo(i, classes[i], bool(crowd)) for i, crowd in enumerate(iscrowd) if i > 0 and classes[i] != VOID
    ]
    return flat, segments


def _check_ids(flat: np.ndarray, known: int, name: str) -> None:
    highest = int(flat.max(initial=0))
    if highest >= known:
        raise InputError(
            f"image {name}: the ground-truth mask has instance id {highest}, but classes are listed for ids 0 to "
            f"{known - 1}; prepare the data set again"
        )
