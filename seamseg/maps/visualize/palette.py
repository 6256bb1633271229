"""Colour palettes, text colours, and legends: the colours of classes with their names."""

from __future__ import annotations

import colorsys
from collections.abc import Collection, Sequence

import numpy as np
from PIL import Image, ImageDraw


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


def class_colors(given: Sequence[Sequence[int] | None]) -> list[tuple[int, int, int]]:
    """Return the given colours, and where there is none the colour of this number of Pascal VOC, or the next free."""
    found = [None if color is None else (int(color[0]), int(color[1]), int(color[2])) for color in given]
    for k, color in enumerate(found):
        if color is None:
            found[k] = next(other for n in range(k + 1, 1 << 24) if (other := voc_color(n)) not in found)
    return [color for color in found if color is not None]


def text_color(background: Sequence[int] | np.ndarray) -> tuple[int, int, int]:
    """Return black or white, whichever has the higher contrast to a background colour."""
    r, g, b = (int(c) for c in background)
    return (0, 0, 0) if 0.299 * r + 0.587 * g + 0.114 * b > 140 else (255, 255, 255)


BACKGROUND, TEXT = (24, 24, 24), (230, 230, 230)
LINE = 14
"""Height of a line of text in pixels."""

_DIM = (130, 130, 130)
_GAP = 8
_NAME = 60


def draw_legend(
    categories: Sequence[str],
    palette: Sequence[Sequence[int]],
    num_stuff: int,
    width: int,
    shown: Collection[int] | None = None,
) -> Image.Image:
    """Draw the legend of a class list, stuff first, in as many columns as fit into `width` pixels, at least one.

    The names of the classes `shown` are bright; None for all.
    """
    names = [printable(name, _NAME) + (" (stuff)" if k < num_stuff else "") for k, name in enumerate(categories)]
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    column = 40 + round(max((measure.textlength(name) for name in names), default=0))
    across = max(1, width // column)
    legend = Image.new("RGB", (max(width, column), (-(-len(names) // across) + 1) * LINE), BACKGROUND)
    draw = ImageDraw.Draw(legend)
    for k, name in enumerate(names):
        left, top = k % across * column + _GAP // 2, k // across * LINE
        draw.rectangle((left, top + 2, left + 16, top + LINE - 3), fill=tuple(palette[k]), outline=TEXT)
        draw.text((left + 22, top), name, fill=TEXT if shown is None or k in shown else _DIM)
    return legend


def printable(text: str, length: int) -> str:
    """Return a text that the default font of Pillow can draw, from its end if it is longer than `length` letters."""
    # that font may have Latin letters only, and texts of several lines have no length
    text = text.encode("latin-1", errors="replace").decode("latin-1")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= length else "..." + text[3 - length :]
