"""A result as a cell of a notebook shows it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from io import BytesIO

from PIL import Image

LONGEST = 1024
"""Pixels of the pictures along their longer side: notebooks keep them, as text."""


def small_picture(picture: Image.Image, kind: str = "PNG") -> bytes:
    """The file of a picture, shrunk to :data:`LONGEST`."""
    small = picture.copy()
    small.thumbnail((LONGEST, LONGEST))
    buffer = BytesIO()
    small.save(buffer, kind, **({"quality": 88} if kind == "JPEG" else {}))
    return buffer.getvalue()


def class_table(
    picture: Image.Image,
    caption: str,
    segments: Sequence[tuple[str, int, bool, float]],
    palette: Sequence[Sequence[int]],
) -> str:
    """HTML of a picture with a legend: each class with its colour, number of instances and share of the picture.

    Parameters
    ----------
    picture : any size
    caption : its description
    segments : class name, class index, whether it counts as an instance, share of the pixels (0 to 1)
    palette : a row `r, g, b` a class
    """
    rows: dict[int, list] = {}
    for name, category, counts, share in segments:
        row = rows.setdefault(category, [name, 0, 0.0])
        row[1] += int(counts)
        row[2] += share
    legend = "".join(
        '<span style="display:inline-block;margin:0 1em .3em 0;white-space:nowrap">'
        '<span style="display:inline-block;width:.9em;height:.9em;vertical-align:-.1em;border-radius:2px;'
        f'background:rgb({",".join(str(int(c)) for c in palette[category])})"></span> '
        f"{html.escape(name)}{f' &times; {count}' if count else ''} "
        f'<span style="opacity:.6">{100 * share:.1f} %</span></span>'
        for category, (name, count, share) in sorted(rows.items(), key=lambda item: -item[1][2])
    )
    data = base64.b64encode(small_picture(picture, "JPEG")).decode()
    return (
        f'<figure style="margin:0"><img style="max-width:100%" alt="{html.escape(caption, quote=True)}" '
        f'src="data:image/jpeg;base64,{data}"><figcaption style="font-size:90%">{legend}</figcaption></figure>'
    )
