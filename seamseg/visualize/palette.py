"""Colour palettes and text colours."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np


def padded_palette(palette: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
    """Pad a palette with black to `256 x 3` uint8 (void is row 255)."""
    rows = np.asarray(palette, np.uint8).reshape(-1, 3)[:256]
    full = np.zeros((256, 3), np.uint8)
    full[: len(rows)] = rows
    return full


def distinct_colors(count: int) -> np.ndarray:
    """Generate a fixed sequence of distinct colours, `count x 3` uint8."""
    colors = []
    for i in range(count):
        # steps by the golden ratio never repeat a hue; lightness and saturation cycle to separate similar hues
        hue = (0.11 + i * 0.618033988749895) % 1.0
        rgb = colorsys.hls_to_rgb(hue, (0.5, 0.66, 0.38)[i % 3], (0.75, 0.9)[i % 2])
        colors.append([round(255 * c) for c in rgb])
    return np.array(colors, np.uint8).reshape(-1, 3)


def voc_color(number: int) -> tuple[int, int, int]:
    """Return a colour of the palette of Pascal VOC, continued to 2^24: bits alternate as high bits of its channels."""
    red, green, blue = (sum((number >> 3 * k + c & 1) << 7 - k for k in range(8)) for c in range(3))
    return red, green, blue


def text_color(background: Sequence[int] | np.ndarray) -> tuple[int, int, int]:
    """Return black or white, whichever has the higher contrast to a background colour."""
    r, g, b = (int(c) for c in background)
    return (0, 0, 0) if 0.299 * r + 0.587 * g + 0.114 * b > 140 else (255, 255, 255)
