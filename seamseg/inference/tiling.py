"""Division of large images into overlapping tiles, and prediction with the memory of one tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from PIL import Image

from seamseg.inference.tile_merging import Span, Tile, TileDetections, merge_detections
from seamseg.maps.predictions import ArrayPrediction, MapFormat, Prediction
from seamseg.utils.errors import InputError

AUTO_LIMIT = 16 << 20
"""Pixels of the network's input above which `auto` uses tiles: more than any default size reaches."""
AUTO_SIDE = 2048
"""Side of the tiles of `auto`."""
LEAST_SIDE = 128
"""Minimum side of tiles: smaller ones give the network too little context."""
STRIDE = 32
"""Tiles start at multiples of this, the stride of the network, so that its cells match the cells of the whole image."""

Forward = Callable[[np.ndarray], ArrayPrediction]
"""Runs the network on pixels `h x w x 3` uint8 of an image."""


@dataclass(frozen=True)
class Tiling:
    """How large images are divided.

    `tiles` is "auto": tiles of :data:`AUTO_SIDE` if an image has more than :data:`AUTO_LIMIT` pixels at network size;
    "off": no tiles; or a number: tiles of this side if the image has more pixels than one tile. `overlap` is the
    minimum of neighbours in pixels of the network's input; None for a quarter of the side. InputError if the side is
    below :data:`LEAST_SIDE`, or the overlap negative or more than half of the side.
    """

    tiles: str | int = "auto"
    overlap: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tiles, int) and self.tiles not in ("auto", "off"):
            raise InputError(f"`tiles` must be auto, off or a side in pixels, not {self.tiles!r}")
        side = AUTO_SIDE if isinstance(self.tiles, str) else self.tiles
        if side < LEAST_SIDE:
            raise InputError(f"`tiles={side}`: too small, the side must be at least {LEAST_SIDE} pixels")
        if self.overlap is not None and not 0 <= self.overlap <= side // 2:
            raise InputError(f"`tile_overlap={self.overlap}`: must be 0 to {side // 2}, half of the side of the tiles")

    def side_for(self, size: Sequence[int]) -> int | None:
        """Return the side of the tiles of an image of `(height, width, ...)` at network size; None for no tiles."""
        pixels = size[0] * size[1]
        if isinstance(self.tiles, int):
            return self.tiles if pixels > self.tiles**2 else None
        return AUTO_SIDE if self.tiles == "auto" and pixels > AUTO_LIMIT else None

    def overlap_for(self, side: int) -> int:
        """Return the minimum overlap of tiles of a side, which may be smaller than configured."""
        return side // 4 if self.overlap is None else min(self.overlap, side // 2)


def spans(length: int, side: int, overlap: int) -> list[Span]:
    """Divide an axis of `length` pixels into tiles of `side`, at least `2 * STRIDE`.

    All are `side` long, but the last may be up to :data:`STRIDE` shorter, and a single one is as long as the axis.
    Neighbours overlap by at least `overlap`, at most half of the side.
    """
    if length <= side:
        return [Span(0, length, 0, length)]
    step = max((side - overlap) // STRIDE, 1) * STRIDE
    last = -(-(length - side) // STRIDE) * STRIDE
    count = -(-last // step)
    # evenly spread; after rounding down, starts differ by at most a step, which is a multiple of the stride
    starts = [i * last // count // STRIDE * STRIDE for i in range(count + 1)]
    stops = [min(start + side, length) for start in starts]
    cuts = [0, *((stop + start + 1) // 2 for stop, start in zip(stops, starts[1:])), length]
    return [Span(*ends) for ends in zip(starts, stops, cuts, cuts[1:])]


def tiles_of(size: tuple[int, int], side: int, overlap: int) -> list[Tile]:
    """Divide an image of `(height, width)` into tiles, row by row; `side` and `overlap` as of :func:`spans`."""
    rows, columns = (spans(length, side, overlap) for length in size)
    return [Tile(row, column, y, x) for row, y in enumerate(rows) for column, x in enumerate(columns)]


def predict_in_tiles(
    forward: Forward,
    pixels: np.ndarray,
    side: int,
    overlap: int,
    nms_threshold: float | None,
    formats: Mapping[str, MapFormat] = MappingProxyType({}),
) -> ArrayPrediction:
    """Run the network on overlapping tiles of an image and merge the predictions.

    The class of a pixel comes from the tile whose edge is farthest. Objects too large for the overlap come from an
    additional view of the whole image, shrunk to the pixels of a tile. Only the pixels and the maps (one byte a pixel)
    are as large as the image.

    `pixels`, at network size, are `H x W x 3` uint8, as is what `forward` takes; `side` and the minimum `overlap` of
    the tiles are in pixels. `nms_threshold` is as of :func:`seamseg.inference.tile_merging.merge_detections`, None for
    a network without detections; `formats` are of the maps of custom heads. The prediction, in pixels of `pixels`, has
    any number of detections.
    """
    height, width = pixels.shape[:2]
    coarse, grain = (None, 1.0) if nms_threshold is None else _coarse_view(forward, pixels, side)
    parts = []
    semantic: np.ndarray | None = None
    maps: dict[str, np.ndarray] = {}
    means = {name for name, spec in formats.items() if spec.tiles == "mean"}
    counts = np.zeros((height, width), np.uint8) if means else None
    for tile in tiles_of((height, width), side, overlap):
        y, x = tile.y, tile.x
        prediction = forward(pixels[y.start : y.stop, x.start : x.stop])
        if prediction.semantic is not None:
            semantic = _with_core(semantic, prediction.semantic, tile, (height, width))
        for name, part in prediction.maps.items():
            if name in means:
                maps[name] = _with_sum(maps.get(name), part, tile, (height, width))
            else:
                maps[name] = _with_core(maps.get(name), part, tile, (height, width))
        if counts is not None:
            counts[y.start : y.stop, x.start : x.stop] += 1
        parts.append((tile, TileDetections.of(prediction, offset=(y.start, x.start))))
    for name in means & maps.keys():
        maps[name] /= counts
    if coarse is None or nms_threshold is None:
        return replace(prediction, size=(height, width), semantic=semantic, maps=maps)
    found = merge_detections(parts, coarse, grain, overlap, nms_threshold)
    size = (height, width)
    return Prediction(found.boxes, found.classes, found.scores, found.masks, semantic, size, maps=maps)


def _with_core(whole: np.ndarray | None, part: np.ndarray, tile: Tile, size: tuple[int, int]) -> np.ndarray:
    """Copy the core of the map of a tile into the map of the image, which is made with the first tile."""
    y, x = tile.y, tile.x
    if whole is None:
        whole = np.empty((*part.shape[:-2], *size), part.dtype)
    core = part[..., y.core_start - y.start : y.core_stop - y.start, x.core_start - x.start : x.core_stop - x.start]
    whole[..., y.core_start : y.core_stop, x.core_start : x.core_stop] = core
    return whole


def _with_sum(whole: np.ndarray | None, part: np.ndarray, tile: Tile, size: tuple[int, int]) -> np.ndarray:
    """Add the map of a tile to the map of the image, which is made with the first tile."""
    if whole is None:
        whole = np.zeros((*part.shape[:-2], *size), np.float32)
    whole[..., tile.y.start : tile.y.stop, tile.x.start : tile.x.stop] += part
    return whole


def _coarse_view(forward: Forward, pixels: np.ndarray, side: int) -> tuple[TileDetections, float]:
    """Detect on the whole image, shrunk to at most the pixels of a tile; return detections and the factor."""
    height, width = pixels.shape[:2]
    shrink = min(side / math.sqrt(height * width), 1.0)
    size = max(int(height * shrink), 1), max(int(width * shrink), 1)
    size = min(size[0], side**2), min(size[1], side**2)  # for an image one pixel high or wide
    small = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))
    scale = height / size[0], width / size[1]
    return TileDetections.of(forward(small), scale), max(scale)


def first_side(size: tuple[int, int]) -> int | None:
    """Return the side of the first tiles to try if an image of `(height, width)` is too large; None if it is tiny."""
    side = math.isqrt(size[0] * size[1]) // 2
    return None if size[0] * size[1] <= LEAST_SIDE**2 else max(side, LEAST_SIDE)
