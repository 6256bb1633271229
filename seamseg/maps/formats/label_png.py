"""Greyscale PNGs of labels and of instances."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.maps.panoptic_map import SegmentLike
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing


def write_grey_png(path: Path, values: np.ndarray) -> None:
    """Write `H x W` uint8 or uint16 as a greyscale PNG of this depth, atomically; missing folders are created."""
    with replacing(path) as temporary:
        # for maps of long runs: as fast as the lowest level of zlib, with smaller files than its highest
        Image.fromarray(values).save(temporary, format="PNG", compress_type=zlib.Z_RLE)


def label_map(ids: np.ndarray, segments: Sequence[SegmentLike], labels: Sequence[int], void: int) -> np.ndarray:
    """Convert a panoptic map, `H x W` segment ids, to labels, `H x W` uint8, by class; other ids are void."""
    return look_up(ids, [(s.id, labels[s.category]) for s in segments], np.uint8, void)


def instance_map(
    ids: np.ndarray,
    segments: Sequence[SegmentLike],
    labels: Sequence[int],
    num_stuff: int,
    per_label: int,
    alone: int,
    void: int,
    image: str,
) -> np.ndarray:
    """Convert a panoptic map to instances, `H x W` uint16: `label * per_label + number`, numbers from 0.

    Stuff and crowds are `label * alone`. See :func:`label_map` for the others; `image` is its name, for the InputError
    of a class with more than `per_label` instances.
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
                f"image {image}: more than {per_label} instances of label {label}, the limit of this format; "
                "use the format coco"
            )
        values.append((segment.id, label * per_label + numbers[label]))
        numbers[label] += 1
    return look_up(ids, values, np.uint16, void)


def look_up(ids: np.ndarray, values: Sequence[tuple[int, int]], dtype: Any, void: int = 0) -> np.ndarray:
    """Replace the ids of a map by their values, given as `(id, value)`, others by `void`."""
    table: np.ndarray = np.full(1 + max(int(ids.max(initial=0)), *(i for i, _ in values), 0), void, dtype)
    for identity, value in values:
        table[identity] = value
    found = np.empty(ids.shape, dtype)
    for row, out in zip(ids, found):  # at once the index would take 8 bytes per pixel
        out[...] = table[row]
    return found
