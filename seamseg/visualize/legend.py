"""Legends: the colours of classes with their names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from PIL import Image, ImageDraw

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
    """Draw the legend of a class list, in as many columns as fit.

    Parameters
    ----------
    categories, palette : name and colour of each class, stuff first
    width : width in pixels; larger if a name does not fit
    shown : classes whose names are bright; None for all
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
