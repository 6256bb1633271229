"""Bounding boxes of the ids of a map (SPEC section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check import describe
from ._library import define
from .reference.extract_boxes import extract_boxes as extract_boxes_plain


def extract_boxes(id_map: Tensor, n: int) -> Tensor:
    """The bounding box of each id of an id map.

    Parameters
    ----------
    id_map : `H x W`, or `L x H x W` for overlapping layers, integer
    n : number of boxes wanted: ids `0 .. n-1` (ids outside are ignored)

    Returns
    -------
    `n x 4` float32, -1 in the row of an id that is absent
    """
    if not isinstance(id_map, Tensor) or id_map.is_floating_point() or id_map.dim() not in (2, 3):
        raise ValueError(f"extract_boxes: id_map must be an integer H x W or L x H x W, got {describe(id_map)}")
    if n < 0:
        raise ValueError(f"extract_boxes: n must not be negative, got {n}")
    return _extract_boxes(id_map, n)


def _fake(id_map: Tensor, n: int) -> Tensor:
    return id_map.new_empty((n, 4), dtype=torch.float32)


_extract_boxes = define("extract_boxes(Tensor id_map, int n) -> Tensor", extract_boxes_plain, _fake)
