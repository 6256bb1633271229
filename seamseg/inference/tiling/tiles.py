"""When an image is seen in tiles, and where they lie: overlapping, each with a core that is its own."""

from __future__ import annotations

from dataclasses import dataclass

from seamseg.utils.errors import InputError

AUTO_LIMIT = 16 << 20
"""Pixels of the network's input beyond which `auto` makes tiles: more than any default size reaches."""
AUTO_SIDE = 2048
"""Side of the tiles that `auto` makes."""
LEAST_SIDE = 128
"""Tiles are no smaller than this: the network would see too little around each pixel."""
STRIDE = 32
"""Tiles begin at multiples of this, the stride of the network, so that its cells are those of the whole image."""


@dataclass(frozen=True)
class Tiling:
    """How huge images are seen.

    Attributes
    ----------
    tiles : "auto": in tiles of :data:`AUTO_SIDE` where an image has more than :data:`AUTO_LIMIT` pixels at network
        size; "off": always whole; a number: in tiles of this side where it has more pixels than one tile
    overlap : pixels of the network's input that neighbours share at least; None for a quarter of the side

    Raises
    ------
    InputError
        if the side is below :data:`LEAST_SIDE`, or the overlap negative or more than half of the side
    """

    tiles: str | int = "auto"
    overlap: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tiles, str) and self.tiles not in ("auto", "off"):
            raise InputError(f"tiles: auto, off or a side in pixels, not {self.tiles!r}")
        side = AUTO_SIDE if isinstance(self.tiles, str) else self.tiles
        if side < LEAST_SIDE:
            raise InputError(f"tiles of {side} pixels are too small: {LEAST_SIDE} or more")
        if self.overlap is not None and not 0 <= self.overlap <= side // 2:
            raise InputError(f"tile overlap {self.overlap}: must be 0 to {side // 2}, half of the tiles' side")

    @property
    def allowed(self) -> bool:
        """Whether an image may be seen in tiles at all."""
        return self.tiles != "off"

    def side_for(self, size: tuple[int, int]) -> int | None:
        """Side of the tiles of an image of `(height, width)` at network size; None where it is seen whole."""
        pixels = size[0] * size[1]
        if isinstance(self.tiles, int):
            return self.tiles if pixels > self.tiles**2 else None
        return AUTO_SIDE if self.tiles == "auto" and pixels > AUTO_LIMIT else None

    def overlap_for(self, side: int) -> int:
        """The least overlap of tiles of a side, which may be smaller than was asked for."""
        return side // 4 if self.overlap is None else min(self.overlap, side // 2)


@dataclass(frozen=True)
class Span:
    """A tile along one axis: the pixels `start .. stop` that it sees, of which `core_start .. core_stop` are its own.

    The cores of an axis cover it without gap or overlap; between two tiles they part in the middle of what both see,
    so that each pixel belongs to the tile whose edge is farthest.
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
    """The tiles along an axis.

    All are `side` long, except that the last may be up to :data:`STRIDE` shorter, and one alone as long as the axis.

    Parameters
    ----------
    length : of the axis in pixels, positive
    side : at least `2 * STRIDE`
    overlap : that neighbours share at least, at most half of the side
    """
    if length <= side:
        return [Span(0, length, 0, length)]
    step = max((side - overlap) // STRIDE, 1) * STRIDE
    last = -(-(length - side) // STRIDE) * STRIDE
    count = -(-last // step)
    # evenly spread; rounding down never parts two of them by more than a step, which is a multiple of the stride
    starts = [i * last // count // STRIDE * STRIDE for i in range(count + 1)]
    stops = [min(start + side, length) for start in starts]
    cuts = [0, *((stop + start + 1) // 2 for stop, start in zip(stops, starts[1:])), length]
    return [Span(*ends) for ends in zip(starts, stops, cuts, cuts[1:])]


def tiles_of(size: tuple[int, int], side: int, overlap: int) -> list[Tile]:
    """The tiles of an image of `(height, width)`, row by row; `side` and `overlap` as :func:`spans`."""
    rows, columns = (spans(length, side, overlap) for length in size)
    return [Tile(row, column, y, x) for row, y in enumerate(rows) for column, x in enumerate(columns)]
