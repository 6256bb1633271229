"""Drawing of panoptic maps and boxes on images, RGB uint8 arrays; palettes and legends."""

from __future__ import annotations

import base64
import colorsys
import html
from collections.abc import Collection, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seamseg.maps.idmaps.reference import outlines
from seamseg.maps.idmaps.segments import BAND_BYTES, nearest_index, overlay
from seamseg.maps.panoptic_map import VOID, PanopticResult
from seamseg.utils.errors import InputError, one_line

__all__ = ["draw_boxes", "draw_overlay", "outlines"]

Palette = Sequence[Sequence[int]] | np.ndarray


def padded_palette(palette: Palette) -> np.ndarray:
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


def canvas(result: Any, image: np.ndarray | Image.Image | None, opacity: float) -> tuple[np.ndarray, float]:
    """Return the uint8 pixels `H x W x 3` to draw a result on, and the opacity of the overlay.

    The pixels of `image`, or else of the result's own image; without both they are black, and fully covered.
    InputError if the opacity is not between 0 and 1, or the image is not RGB.
    """
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity must be between 0 and 1, not {opacity}")
    given = result.image if image is None else image
    if given is None:
        return np.zeros((*result.size, 3), np.uint8), 1.0
    rgb = np.asarray(given.convert("RGB") if isinstance(given, Image.Image) else given)
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
        raise InputError(f"an image to draw on must be H x W x 3 uint8 RGB, this one is {rgb.shape} {rgb.dtype}")
    return rgb, opacity


def draw_overlay(
    image: np.ndarray,
    result: PanopticResult,
    palette: Palette,
    categories: Sequence[str] | None = None,
    labels: bool = False,
    opacity: float = 0.5,
    outlined: bool = True,
) -> Image.Image:
    """Blend an image with the colours of its panoptic map and outline the instances (docs/contract.md, section 1).

    With an opacity of one half, the result is bit-identical to the overlay of the original's `test_panoptic.py` before
    JPEG compression. It is drawn in bands: no second copy of a large image is made.

    Parameters
    ----------
    image : uint8 `H x W x 3`
    result : panoptic map, resized to the image if the sizes differ
    palette : one row `r, g, b` per class, stuff first
    categories : class names, needed for `labels`
    labels : write class and score on each segment that is large enough
    opacity : opacity of the colours, 0 (image only) to 1 (colours only)
    outlined : outline the instances
    """
    if labels and categories is None:
        raise ValueError("draw_overlay: labels=True needs the categories")
    (height, width), id_map = image.shape[:2], result.id_map
    palette, count = padded_palette(palette), max((s.id for s in result.segments), default=0) + 1
    classes, instances = np.full(count, VOID, np.int64), np.zeros(count, bool)
    for segment in result.segments:
        # crowds are drawn as void, like in the original
        if not (segment.iscrowd and segment.isthing):
            classes[segment.id] = segment.category
            instances[segment.id] = segment.isthing and outlined
    colors = palette[classes]
    colors[classes == VOID] = 0
    row_of, column_of = (nearest_index(old, new).astype(np.int64) for old, new in zip(id_map.shape, (height, width)))
    columns, share = None if id_map.shape[1] == width else column_of, None if opacity == 0.5 else round(opacity * 256)
    if id_map.dtype != np.int32:
        id_map = np.where((id_map >= 0) & (id_map < len(colors)), id_map, 0).astype(np.int32)
    rows, drawn = max(1, BAND_BYTES // (3 * width)), Image.new("RGB", (width, height))
    for y in range(0, height, rows):
        band = overlay(image[y : y + rows], id_map, row_of[y : y + rows], columns, colors, instances, share)
        drawn.paste(Image.fromarray(band), (0, y))
    if labels and categories is not None:
        _write_labels(drawn, result, palette, categories)
    return drawn


def _write_labels(image: Image.Image, result: PanopticResult, palette: np.ndarray, categories: Sequence[str]) -> None:
    draw = ImageDraw.Draw(image)
    width, height = image.size
    font = label_font((height, width))
    scale = np.array([height, width] * 2) / np.array(result.size * 2)
    for segment in sorted(result.segments, key=lambda s: s.area):
        if segment.category >= len(categories) or (segment.iscrowd and segment.isthing):
            continue
        y0, x0, y1, x1 = (np.array(segment.box) * scale).tolist()
        name = short_name(categories[segment.category].split("--")[-1].replace("-", " "))
        text = name if segment.score is None else f"{name} {segment.score:.2f}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        if right > 1.5 * (x1 - x0) or bottom > 0.8 * (y1 - y0):
            continue
        # at the median row, and the median column in it; row by row, as a copy of the mask of a large image is large
        counts, row, column = np.cumsum([np.count_nonzero(row == segment.id) for row in result.id_map]), 0, 0.0
        if counts[-1]:
            row = int(np.searchsorted(counts, counts[-1] // 2, side="right"))
            column = float(np.median(np.flatnonzero(result.id_map[row] == segment.id)))
        x = min(max(0.0, column * scale[1] - right / 2), max(0.0, width - right - 2))
        y = min(max(0.0, row * scale[0] - bottom / 2), max(0.0, height - bottom - 2))
        color = tuple(palette[segment.category].tolist())
        draw.rectangle((x + left - 3, y + top - 2, x + right + 3, y + bottom + 2), fill=color)
        draw.text((x, y), text, fill=text_color(color), font=font)


def short_name(name: str) -> str:
    """Return a class name for an image: at most 60 characters, since a longer one could not be read."""
    return name if len(name) <= 60 else f"{name[:57]}..."


def label_font(size: tuple[int, int]) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Return a font that is readable on an image of `(height, width)`."""
    return ImageFont.load_default(max(10, round(min(size) / 45)))


def draw_boxes(
    image: np.ndarray, boxes: np.ndarray, classes: np.ndarray, palette: Palette, width: int = 2
) -> np.ndarray:
    """Draw boxes on an image, uint8 `H x W x 3`, with lines of `width` pixels.

    `boxes` are `N x 4`, `(y0, x0, y1, x1)` in pixels, exclusive lower-right corner; non-finite boxes are skipped.
    `classes` are `N` rows `r, g, b` of the palette.
    """
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    for box, color in zip(boxes.tolist(), padded_palette(palette)[classes].tolist()):
        if np.isfinite(box).all():
            outline_box(draw, box, tuple(color), width)
    return np.asarray(canvas)


def outline_box(draw: ImageDraw.ImageDraw, box: Sequence[float], color: tuple[int, ...], width: int) -> None:
    """Draw a box `(y0, x0, y1, x1)`, whose lower-right corner is exclusive."""
    y0, x0, y1, x1 = box
    draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=width)


THUMBNAIL_SIZE = 1024
"""Longer side in pixels of images in notebooks, which are stored as text."""


def figure_html(
    image: Image.Image, caption: str, segments: Sequence[tuple[str, int, bool, float]], palette: Sequence[Sequence[int]]
) -> str:
    """Format an image with a legend as HTML: colour, number of instances and fraction of the image of each class.

    `segments` are class name, class index, whether it counts as an instance, and fraction of the pixels (0 to 1).
    """
    rows: dict[int, tuple[str, int, float]] = {}
    for name, category, is_instance, fraction in segments:
        _, count, total = rows.get(category, (name, 0, 0.0))
        rows[category] = name, count + int(is_instance), total + fraction
    legend = "".join(
        '<span style="display:inline-block;margin:0 1em .3em 0;white-space:nowrap">'
        '<span style="display:inline-block;width:.9em;height:.9em;vertical-align:-.1em;border-radius:2px;'
        f'background:rgb({",".join(str(int(c)) for c in palette[category])})"></span> '
        f"{html.escape(one_line(name))}{f' &times; {count}' if count else ''} "
        f'<span style="opacity:.6">{100 * total:.1f} %</span></span>'
        for category, (name, count, total) in sorted(rows.items(), key=lambda item: -item[1][2])
    )
    thumbnail, buffer = image.copy(), BytesIO()
    thumbnail.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    thumbnail.save(buffer, "JPEG", quality=88)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure style="margin:0"><img style="max-width:100%" alt="{html.escape(one_line(caption), quote=True)}" '
        f'src="data:image/jpeg;base64,{data}"><figcaption style="font-size:90%">{legend}</figcaption></figure>'
    )


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
