"""Label and id maps: boxes of ids, counts, pasting of masks, ids for free pixels (docs/contract.md, section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.ops._library import define
from seamseg.ops.reference import labels as plain


def extract_boxes(id_map: Tensor, n: int) -> Tensor:
    """Compute the bounding box of each id of an id map.

    Parameters
    ----------
    id_map : `H x W`, or `L x H x W` for overlapping layers, integer
    n : number of boxes: ids `0 .. n-1` (ids outside are ignored)

    Returns
    -------
    `n x 4` float32, -1 in the row of an id that is absent
    """
    return _extract_boxes(id_map, n)


def count_labels(labels: Tensor, n: int, id_map: Tensor | None = None) -> Tensor:
    """Count the pixels of each of the labels `0 .. n-1`, int64 `n`, of which there are at most 2^24.

    With an `id_map` of the same shape only pixels where it is 0 are counted.
    """
    return _count_labels(labels, n, id_map)


def fill_free(id_map: Tensor, labels: Tensor, ids: Tensor) -> None:
    """Set every free (0) pixel of an id map, in place, to the id of its label in a map of the same shape.

    `ids`, `n` int64, has the id of each label, 0 for none; labels without an entry have none. They must fit the type of
    `id_map`, which is not checked, as the host would wait for a GPU.
    """
    _fill_free(id_map, labels, ids)


_count_labels = define(
    "count_labels", plain.count_labels, lambda labels, n, id_map: labels.new_empty((n,), dtype=torch.int64)
)
_fill_free = define("fill_free", plain.fill_free, lambda id_map, labels, ids: None)
_extract_boxes = define(
    "extract_boxes", plain.extract_boxes, lambda id_map, n: id_map.new_empty((n, 4), dtype=torch.float32)
)
paste_masks_into = define(
    "paste_masks_into",
    plain.paste_masks_into,
    lambda id_map, masks, *rest: masks.new_empty(masks.shape[0], dtype=torch.bool),
)
"""Paste instances one after the other, each onto the pixels still free: `id_map, masks, boxes, overlap_threshold,
first_id, keep_empty`.

An instance is dropped if more than the fraction `overlap_threshold` of its pixels are taken. The host does not wait
for the GPU. `id_map`, an integer `H x W` (not bool), 0 where free, is written in place. Masks are probabilities,
float32 `K x h x w`, best score first, boxes float32 `K x 4` in pixels of the image.

Returns `K` bool: whether an instance got an id. These are numbered in order from `first_id` on; `id_map` must be able
to hold K of them. With `keep_empty` an instance without pixels gets one, as in the original implementation.
"""
