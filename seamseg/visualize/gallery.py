"""A page to look at results with: one HTML file that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.files import write_atomically

from ._gallery_page import SCRIPT, STYLE

LONGEST = 640
"""Pictures are scaled down to this many pixels along their longer side."""
QUALITY = 80
"""JPEG quality of the pictures."""


@dataclass(frozen=True)
class Card:
    """One image of the gallery: pictures of the same scene under their labels (photo, prediction, ground truth)."""

    name: str
    images: Mapping[str, np.ndarray]
    """label -> uint8 `H x W x 3`"""
    note: str = ""


def write_gallery(
    path: str | os.PathLike,
    title: str,
    headline: Mapping[str, str],
    rows: Sequence[Mapping[str, object]],
    cards: Sequence[Card],
) -> None:
    """Write the page to `path`, by way of a temporary file.

    Parameters
    ----------
    path : of the HTML file; its folder is made if need be
    title : heading of the page
    headline : the figures at the top, `{"PQ": "43.1", ...}`
    rows : the table, one mapping a row, all with the same keys; the first value names the row, floats are fractions 0-1
        and get a bar, whole numbers are counts, None and NaN show as a dash
    cards : the pictures
    """
    page = _page(title, headline, rows, cards)
    write_atomically(Path(path), page.encode())


def _page(title: str, headline: Mapping[str, str], rows: Sequence[Mapping[str, object]], cards: Sequence[Card]) -> str:
    figures = "".join(
        f"<div class=figure><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in headline.items()
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>",
            "<body><header>",
            f"<h1>{html.escape(title)}</h1>",
            f"<dl class=figures>{figures}</dl>" if figures else "",
            "</header><main>",
            _table(rows),
            _cards(cards),
            "</main>",
            _ZOOM if cards else "",
            f"<script>{SCRIPT}</script>",
            "</body></html>\n",
        ]
    )


_ZOOM = """<dialog id=zoom aria-label="Enlarged picture"><figure><img alt=""><figcaption></figcaption></figure>
<p class=keys><button type=button id=previous>&larr; previous</button>
<button type=button id=close>close</button><button type=button id=next>next &rarr;</button></p></dialog>"""


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    head = "".join(f'<th scope="col">{html.escape(n)}</th>' for n in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(n), i == 0) for i, n in enumerate(names))}</tr>" for row in rows)
    return (
        "<section aria-labelledby=classes><h2 id=classes>Classes</h2><div class=scroll tabindex=0 role=region "
        f'aria-label="Scores of the classes"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "</section>"
    )


def _cell(value: object, first: bool) -> str:
    if first:
        return f'<th scope="row">{html.escape(str(value))}</th>'
    if value is None or (isinstance(value, (float, np.floating)) and not np.isfinite(value)):
        return "<td class=none>&ndash;</td>"
    if isinstance(value, (float, np.floating)):
        percent = 100 * float(value)
        bar = f"<span class=bar style=--part:{min(max(percent, 0), 100):.1f}%></span>"
        return f"<td class=number>{bar}<span>{percent:.1f}</span></td>"
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return f"<td class=number><span>{int(value)}</span></td>"
    return f"<td>{html.escape(str(value))}</td>"


def _cards(cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    articles = "".join(map(_card, cards))
    return f"<section aria-labelledby=pictures><h2 id=pictures>Pictures</h2><div class=cards>{articles}</div></section>"


def _card(card: Card) -> str:
    pictures = ""
    for label, image in card.images.items():
        name = html.escape(f"{card.name}: {label}")
        pictures += (
            f'<figure><button type=button class=open aria-label="Enlarge {name}">'
            f'<img loading=lazy decoding=async {_source(image)} alt="{name}"></button>'
            f"<figcaption>{html.escape(label)}</figcaption></figure>"
        )
    kind = "card tall" if any(image.shape[0] > image.shape[1] for image in card.images.values()) else "card"
    note = f"<p class=note>{html.escape(card.note)}</p>" if card.note else ""
    heading = f"<h3>{html.escape(card.name)}</h3>"
    return f'<article class="{kind}">{heading}{note}<div class=pictures>{pictures}</div></article>'


def _source(image: np.ndarray) -> str:
    """`width`, `height` and `src` of a picture, as JPEG within the page."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > LONGEST:
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY, optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'width={picture.width} height={picture.height} src="data:image/jpeg;base64,{data}"'
