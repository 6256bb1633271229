"""Division of large images into overlapping tiles, each with a core of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seamseg.utils.errors import InputError

AUTO_LIMIT = 16 << 20
"""Pixels of the network's input above which `auto` uses tiles: more than any default size reaches."""
AUTO_SIDE = 2048
"""Side of the tiles of `auto`."""
LEAST_SIDE = 128
"""Minimum side of tiles: smaller ones give the network too little context."""
STRIDE = 32
"""Tiles start at multiples of this, the stride of the network, so that its cells match the cells of the whole image."""


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

    @property
    def allowed(self) -> bool:
        """Whether images may be divided."""
        return self.tiles != "off"

    def side_for(self, size: Sequence[int]) -> int | None:
        """Return the side of the tiles of an image of `(height, width, ...)` at network size; None for no tiles."""
        pixels = size[0] * size[1]
        if isinstance(self.tiles, int):
            return self.tiles if pixels > self.tiles**2 else None
        return AUTO_SIDE if self.tiles == "auto" and pixels > AUTO_LIMIT else None

    def overlap_for(self, side: int) -> int:
        """Return the minimum overlap of tiles of a side, which may be smaller than configured."""
        return side // 4 if self.overlap is None else min(self.overlap, side // 2)


@dataclass(frozen=True)
class Span:
    """A tile along one axis: the pixels `start .. stop`, of which `core_start .. core_stop` are its core.

    The cores cover the axis without gap or overlap. Those of two tiles meet in the middle of their overlap, so that
    each pixel belongs to the tile whose edge is farthest.
    """

    start: int
    stop: int
    core_start: int
    core_stop: int


@dataclass(frozen=True)
class Tile:
    """A tile of an image: `row` and `column` in the grid, and its spans along both axes."""

    row: int
    column: int
    y: Span
    x: Span


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
