"""Drawing of detected objects on images: boxes, masks, class names and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from seamseg.maps.pasting import resize_crop
from seamseg.maps.visualize.overlay import Palette, label_font, outline_box, padded_palette, short_name, text_color

LEGACY_OPACITY = 192 / 255
"""Opacity of the masks in the overlays of the original."""
LEGACY_LINE = 3
"""Width in pixels of the boxes there."""


def draw_detections(
    image: np.ndarray,
    objects: Sequence[Any],
    size: tuple[int, int],
    palette: Palette,
    labels: bool = True,
    opacity: float = 0.5,
) -> np.ndarray:
    """Draw objects with boxes, masks and labels; high scores are on top.

    Parameters
    ----------
    image : uint8 `H x W x 3`
    objects : :class:`seamseg.results.detections.Detection`, in pixels of an image of `size`, scaled to
        `image` if it has another size
    size : `(height, width)`
    palette : one row `r, g, b` per class
    labels : write class and score above each box, or within it at the upper edge of the image
    opacity : opacity of the masks, 0 to 1

    Returns
    -------
    uint8 `H x W x 3`
    """
    colors = padded_palette(palette)
    canvas = Image.fromarray(np.array(image))
    ordered = [
        (d, _scaled_box(d, size, image.shape), tuple(colors[d.category].tolist()))
        for d in sorted(objects, key=lambda d: d.score)
    ]
    for d, _, color in ordered:
        _paint(canvas, d, size, color, opacity)
    draw = ImageDraw.Draw(canvas)
    width = max(1, round(min(image.shape[:2]) / 350))
    for _, box, color in ordered:
        outline_box(draw, box, color, width)
    font = label_font((canvas.height, canvas.width))
    for d, box, color in ordered if labels else ():
        text = f"{short_name(d.name.split('--')[-1].replace('-', ' '))} {d.score:.2f}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        wide, high = right - left + 6, bottom - top + 4
        x = min(max(0.0, box[1]), max(0.0, canvas.width - wide))
        y = box[0] - high if box[0] >= high else min(box[0], max(0.0, canvas.height - high))
        draw.rectangle((x, y, x + wide - 1, y + high - 1), fill=color)
        draw.text((x + 3 - left, y + 2 - top), text, fill=text_color(color), font=font)
    return np.asarray(canvas)


def draw_legacy(image: np.ndarray, objects: Sequence[Any], size: tuple[int, int], palette: Palette) -> np.ndarray:
    """Draw objects in their order as the original's `test_instance_seg.py` does, before JPEG compression; no text."""
    colors = padded_palette(palette)
    canvas = Image.fromarray(np.array(image))
    draw = ImageDraw.Draw(canvas)
    for d in objects:
        color = tuple(colors[d.category].tolist())
        _paint(canvas, d, size, color, LEGACY_OPACITY)
        y0, x0, y1, x1 = _scaled_box(d, size, image.shape)
        draw.rectangle((x0, y0, x1, y1), outline=color, width=LEGACY_LINE)
    return np.asarray(canvas)


def _scaled_box(d: Any, size: tuple[int, int], shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    down, right = shape[0] / size[0], shape[1] / size[1]
    y0, x0, y1, x1 = d.box
    return y0 * down, x0 * right, y1 * down, x1 * right


def _paint(image: Image.Image, d: Any, size: tuple[int, int], color: tuple[int, ...], opacity: float) -> None:
    if d.crop is None or d.crop.size == 0:
        return
    crop, (y, x) = resize_crop(d.crop, d.corner, size, (image.height, image.width))
    if crop.size:
        image.paste(color, (x, y), Image.fromarray(crop * np.uint8(round(opacity * 255))))
