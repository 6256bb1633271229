"""Maps of segments as grey pictures of labels and of instances."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.panoptic_map import SegmentLike
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing


def write_grey_png(path: Path, values: np.ndarray) -> None:
    """Write `H x W` uint8 or uint16 as a grey PNG of that depth, whole or not at all; missing folders are made."""
    with replacing(path) as temporary:
        # runs are all there is to find: as fast as the lowest level of zlib, and smaller files than its highest
        Image.fromarray(values).save(temporary, format="PNG", compress_type=zlib.Z_RLE)


def label_picture(ids: np.ndarray, segments: Sequence[SegmentLike], labels: Sequence[int], void: int) -> np.ndarray:
    """The label of each pixel, `H x W` uint8.

    Parameters
    ----------
    ids : `H x W` segment ids, 0 void
    segments : of the map; pixels of other ids are void
    labels : of each class, at most 255
    void : label of void
    """
    return _look_up(ids, [(s.id, labels[s.category]) for s in segments], void, np.uint8)


def instance_picture(
    ids: np.ndarray,
    segments: Sequence[SegmentLike],
    labels: Sequence[int],
    num_stuff: int,
    per_label: int,
    alone: int,
    void: int,
    image: str,
) -> np.ndarray:
    """Label and instance number of each pixel, `H x W` uint16: `label * per_label + number`, numbers from 0.

    Parameters
    ----------
    ids, segments, labels : as :func:`label_picture`
    num_stuff : stuff classes, which come before the things
    per_label : so many instances of a label can be told apart
    alone : stuff and crowds are `label * alone`
    void : value of void
    image : for errors

    Raises
    ------
    InputError
        if the image has more instances of a class than the format can number
    """
    numbers: Counter[int] = Counter()
    values = []
    for segment in segments:
        label = labels[segment.category]
        if segment.category < num_stuff or segment.iscrowd:
            values.append((segment.id, label * alone))
            continue
        if numbers[label] == per_label:
            raise InputError(
                f"image {image}: more than {per_label} instances of label {label}, which this format cannot number; "
                "use the format coco"
            )
        values.append((segment.id, label * per_label + numbers[label]))
        numbers[label] += 1
    return _look_up(ids, values, void, np.uint16)


def _look_up(ids: np.ndarray, values: Sequence[tuple[int, int]], void: int, dtype: type) -> np.ndarray:
    table: np.ndarray = np.full(1 + max(int(ids.max(initial=0)), *(i for i, _ in values), 0), void, dtype)
    for identity, value in values:
        table[identity] = value
    return table[ids]
