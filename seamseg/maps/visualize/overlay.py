"""Drawing of panoptic maps and boxes on images, RGB uint8 arrays; legends as HTML."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seamseg.maps.idmaps.reference import outlines
from seamseg.maps.idmaps.resize import nearest_index
from seamseg.maps.idmaps.segments import BAND_BYTES, overlay
from seamseg.maps.panoptic_map import VOID, PanopticResult
from seamseg.maps.visualize.palette import padded_palette, text_color
from seamseg.utils.errors import one_line

__all__ = ["draw_boxes", "draw_overlay", "outlines"]

Palette = Sequence[Sequence[int]] | np.ndarray


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
    if not 0 <= opacity <= 1:
        raise ValueError(f"draw_overlay: opacity must be 0 to 1, got {opacity}")
    (height, width), id_map = image.shape[:2], result.id_map
    colors, instances = _colors_of_ids(result, padded_palette(palette), outlined)
    row_of, column_of = (nearest_index(old, new).astype(np.int64) for old, new in zip(id_map.shape, (height, width)))
    columns, share = None if id_map.shape[1] == width else column_of, None if opacity == 0.5 else round(opacity * 256)
    if id_map.dtype != np.int32:
        id_map = np.where((id_map >= 0) & (id_map < len(colors)), id_map, 0).astype(np.int32)
    rows, canvas = max(1, BAND_BYTES // (3 * width)), Image.new("RGB", (width, height))
    for y in range(0, height, rows):
        drawn = overlay(image[y : y + rows], id_map, row_of[y : y + rows], columns, colors, instances, share)
        canvas.paste(Image.fromarray(drawn), (0, y))
    if labels and categories is not None:
        _write_labels(canvas, result, padded_palette(palette), categories)
    return canvas


def _colors_of_ids(result: PanopticResult, palette: np.ndarray, outlined: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour of each id of a map, `K x 3` uint8, and whether it is outlined, `K` bool."""
    count = max((s.id for s in result.segments), default=0) + 1
    classes, instances = np.full(count, VOID, np.int64), np.zeros(count, bool)
    for segment in result.segments:
        # crowds are drawn as void, like in the original
        if not (segment.iscrowd and segment.isthing):
            classes[segment.id] = segment.category
            instances[segment.id] = segment.isthing and outlined
    return palette[classes], instances


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
        at = _label_position(result.id_map, segment.id, scale)
        x = min(max(0.0, at[1] - right / 2), max(0.0, width - right - 2))
        y = min(max(0.0, at[0] - bottom / 2), max(0.0, height - bottom - 2))
        color = tuple(palette[segment.category].tolist())
        draw.rectangle((x + left - 3, y + top - 2, x + right + 3, y + bottom + 2), fill=color)
        draw.text((x, y), text, fill=text_color(color), font=font)


def _label_position(id_map: np.ndarray, segment: int, scale: np.ndarray) -> tuple[float, float]:
    """Return the median row of a segment and the median column in it, in image pixels."""
    # row by row: a copy of the mask of a large image is large
    counts = np.cumsum([np.count_nonzero(row == segment) for row in id_map])
    if not counts[-1]:
        return 0.0, 0.0
    row = np.searchsorted(counts, counts[-1] // 2, side="right")
    column = np.median(np.flatnonzero(id_map[row] == segment))
    return float(row * scale[0]), float(column * scale[1])


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


def encode_thumbnail(image: Image.Image, kind: str = "PNG") -> bytes:
    """Encode an image, reduced to :data:`THUMBNAIL_SIZE`, in a file format of Pillow."""
    thumbnail = image.copy()
    thumbnail.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    buffer = BytesIO()
    thumbnail.save(buffer, kind, **({"quality": 88} if kind == "JPEG" else {}))
    return buffer.getvalue()


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
    data = base64.b64encode(encode_thumbnail(image, "JPEG")).decode()
    return (
        f'<figure style="margin:0"><img style="max-width:100%" alt="{html.escape(one_line(caption), quote=True)}" '
        f'src="data:image/jpeg;base64,{data}"><figcaption style="font-size:90%">{legend}</figcaption></figure>'
    )
