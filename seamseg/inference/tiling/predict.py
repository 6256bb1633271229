"""One image seen tile by tile, with the memory of one tile; and again in smaller ones where that was too much."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.inference.tiling.merge import Detections, merge_detections
from seamseg.inference.tiling.tiles import LEAST_SIDE, Tiling, tiles_of
from seamseg.structures import Prediction
from seamseg.utils.device_memory import free_memory, lacks_memory

See = Callable[[Tensor], Prediction]
"""From pixels `3 x h x w`, a part of the image's, to what the network says of them, on the CPU."""


def predict_in_tiles(see: See, pixels: Tensor, side: int, overlap: int, nms_threshold: float) -> Prediction:
    """What the network says of an image that it sees in overlapping tiles.

    Each pixel's class is that of the tile whose edge is farthest. Objects too large for the overlap are those of one
    more view of the whole image, shrunk to the pixels of a tile. Nothing is as large as the image but its pixels and
    the class map, a byte each.

    Parameters
    ----------
    see : the network
    pixels : of the image at network size, `3 x H x W`, uint8 or float32
    side, overlap : of the tiles, in pixels
    nms_threshold : as :func:`seamseg.inference.tiling.merge.merge_detections`

    Returns
    -------
    Prediction
        of the whole image, in pixels of `pixels`; any number of detections. `semantic` is uint8
    """
    height, width = pixels.shape[-2:]
    coarse, grain = _seen_coarsely(see, pixels, side)
    parts = []
    semantic: Tensor | None = None
    for tile in tiles_of((height, width), side, overlap):
        y, x = tile.y, tile.x
        seen = see(pixels[:, y.start : y.stop, x.start : x.stop])
        if seen.semantic is not None:
            if semantic is None:
                semantic = torch.empty((height, width), dtype=torch.uint8)
            core = seen.semantic[y.core_start - y.start : y.core_stop - y.start]
            core = core[:, x.core_start - x.start : x.core_stop - x.start]
            semantic[y.core_start : y.core_stop, x.core_start : x.core_stop] = core
        parts.append((tile, Detections.of(seen, offset=(y.start, x.start))))
    found = merge_detections(parts, coarse, grain, overlap, nms_threshold)
    return Prediction(found.boxes, found.classes, found.scores, found.masks, semantic, (height, width))


def _seen_coarsely(see: See, pixels: Tensor, side: int) -> tuple[Detections, float]:
    """The detections of the whole image, shrunk to the pixels of a tile at most, and how many times it was shrunk."""
    height, width = pixels.shape[-2:]
    shrink = min(side / math.sqrt(height * width), 1.0)
    size = max(int(height * shrink), 1), max(int(width * shrink), 1)
    size = min(size[0], side**2), min(size[1], side**2)  # of a picture one pixel high or wide
    small = functional.interpolate(pixels[None], size, mode="bilinear", align_corners=False, antialias=True)[0]
    scale = height / size[0], width / size[1]
    return Detections.of(see(small), scale), max(scale)


def first_side(size: tuple[int, int]) -> int | None:
    """Side of the tiles to try where an image of `(height, width)` was too large; None where it is tiny."""
    side = math.isqrt(size[0] * size[1]) // 2
    return None if size[0] * size[1] <= LEAST_SIDE**2 else max(side, LEAST_SIDE)


def predict_in_tiles_that_fit(
    see: See, pixels: Tensor, side: int, tiling: Tiling, nms_threshold: float
) -> tuple[Prediction, int]:
    """:func:`predict_in_tiles`, with tiles of half the side as long as the memory of the device does not suffice.

    Parameters
    ----------
    see, pixels, nms_threshold : as :func:`predict_in_tiles`
    side : of the largest tiles to try
    tiling : gives their overlap

    Returns
    -------
    the prediction, and the side of the tiles it was made in

    Raises
    ------
    RuntimeError
        that of the device's memory, if not even tiles of :data:`seamseg.inference.tiling.tiles.LEAST_SIDE` fit
    """
    while True:
        try:
            return predict_in_tiles(see, pixels, side, tiling.overlap_for(side), nms_threshold), side
        except RuntimeError as error:
            if side <= LEAST_SIDE or not lacks_memory(error):
                raise
        # outside of the handler: the error holds on to what the network had made
        free_memory()
        side = max(side // 2, LEAST_SIDE)
