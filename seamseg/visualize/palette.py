"""Colours: a palette of any length, and the colour of a class."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np


def as_palette(palette: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
    """`256 x 3` uint8 palette: the given rows first, then black (void is row 255)."""
    rows = np.asarray(palette, np.uint8).reshape(-1, 3)[:256]
    full = np.zeros((256, 3), np.uint8)
    full[: len(rows)] = rows
    return full


def spread_palette(count: int) -> np.ndarray:
    """`count x 3` uint8 colours that are easy to tell apart, always the same ones (for data without a palette)."""
    colors = []
    for i in range(count):
        # steps of the golden ratio never come back to a hue; lightness and saturation cycle to part neighbours
        hue = (0.11 + i * 0.618033988749895) % 1.0
        rgb = colorsys.hls_to_rgb(hue, (0.5, 0.66, 0.38)[i % 3], (0.75, 0.9)[i % 2])
        colors.append([round(255 * c) for c in rgb])
    return np.array(colors, np.uint8).reshape(-1, 3)


def readable_on(color: Sequence[int] | np.ndarray) -> tuple[int, int, int]:
    """Black or white, whichever can be read on this colour."""
    r, g, b = (int(c) for c in color)
    return (0, 0, 0) if 0.299 * r + 0.587 * g + 0.114 * b > 140 else (255, 255, 255)
