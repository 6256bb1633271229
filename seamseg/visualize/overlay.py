"""Pictures of panoptic maps and of boxes: RGB uint8 arrays in, RGB uint8 arrays out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seamseg.idmaps.resize import nearest_index
from seamseg.panoptic_map import VOID, PanopticResult

from .palette import as_palette, readable_on, spread_palette

Palette = Sequence[Sequence[int]] | np.ndarray


def draw_overlay(
    photo: np.ndarray,
    result: PanopticResult,
    palette: Palette,
    categories: Sequence[str] | None = None,
    labels: bool = False,
    opacity: float = 0.5,
    outlined: bool = True,
) -> np.ndarray:
    """The photo under the colours of its panoptic map, instances outlined in white (SPEC section 1 "Commands").

    Parameters
    ----------
    photo : uint8 `H x W x 3`
    result : its panoptic map; of another size, it is scaled to the photo
    palette : a row `r, g, b` a class, stuff first
    categories : class names, needed for `labels`
    labels : write class (and score) on each segment that is large enough
    opacity : of the colours, 0 (photo alone) to 1 (colours alone)
    outlined : draw the outlines

    Returns
    -------
    uint8 `H x W x 3`
    """
    count = max((s.id for s in result.segments), default=0) + 1
    classes = np.full(count, VOID, np.int64)
    instances = np.zeros(count, bool)
    for segment in result.segments:
        # a crowd of things was not told apart: it shows as void, as it always did
        if not (segment.iscrowd and segment.isthing):
            classes[segment.id] = segment.category
            instances[segment.id] = segment.isthing and outlined
    picture = draw_classic(photo, result.id_map, classes, instances, palette, opacity)
    if labels:
        if categories is None:
            raise ValueError("draw_overlay: labels=True needs the categories")
        picture = _write_labels(picture, result, as_palette(palette), categories)
    return picture


def draw_classic(
    photo: np.ndarray,
    id_map: np.ndarray,
    classes: np.ndarray,
    instances: np.ndarray,
    palette: Palette,
    opacity: float = 0.5,
) -> np.ndarray:
    """The composite that `test_panoptic.py` has always written, before JPEG.

    Parameters
    ----------
    photo : uint8 `H x W x 3`
    id_map : integer `h x w` segment ids, 0 void; scaled to the photo by nearest neighbour if the sizes differ
    classes : class of each id, 255 for none; entry 0 is void
    instances : whether each id gets an outline
    palette : a row `r, g, b` a class
    opacity : of the palette; at one half the picture is the classic one to the last bit

    Returns
    -------
    uint8 `H x W x 3`: half photo, half palette (black for void), outlines white
    """
    if not 0 <= opacity <= 1:
        raise ValueError(f"draw_overlay: opacity must be 0 to 1, got {opacity}")
    classes = np.array(classes)
    classes[0] = VOID
    known = (id_map >= 0) & (id_map < len(classes))
    ids = np.where(known, id_map, 0)
    lines = outlines(np.where(np.asarray(instances, bool)[ids], ids, 0))
    colors = as_palette(palette)[classes[ids]]
    if id_map.shape != photo.shape[:2]:
        rows, columns = (nearest_index(old, new) for old, new in zip(id_map.shape, photo.shape[:2]))
        lines, colors = lines[rows[:, None], columns], colors[rows[:, None], columns]
    if opacity == 0.5:
        picture = ((photo.astype(np.uint16) + colors) // 2).astype(np.uint8)
    else:
        share = np.uint16(round(opacity * 256))  # the largest sum, 255 * 256 + 128, just fits
        mixed = photo.astype(np.uint16) * np.uint16(256 - share) + colors.astype(np.uint16) * share
        picture = ((mixed + np.uint16(128)) >> np.uint16(8)).astype(np.uint8)
    picture[lines] = 255
    return picture


def outlines(instances: np.ndarray) -> np.ndarray:
    """Where outlines are drawn.

    Background pixels that touch an instance, instance pixels that touch another one, and the four neighbours of both:
    about two pixels outside and one inside.

    Parameters
    ----------
    instances : integer `H x W` ids, 0 where there is no instance

    Returns
    -------
    bool `H x W`
    """
    high = _around(np.maximum, instances, cross=True)
    low = _around(np.minimum, instances, cross=True)
    ground = instances == 0
    big = np.iinfo(instances.dtype).max
    others = _around(np.maximum, instances) != _around(np.minimum, np.where(ground, big, instances))
    # The original marks an instance pixel also where the three pixels left or right of it are all background (an
    # overflow in its column-wise minimum); pictures of old and new runs are to be the same, so this is kept.
    padded = np.pad(ground, 1, mode="edge")
    column = padded[:-2] & padded[1:-1] & padded[2:]
    bare = column[:, :-2] | column[:, 2:]
    edge = (high != low) & (ground | others | bare)
    return _around(np.logical_or, edge, cross=True)


def _around(ufunc: np.ufunc, values: np.ndarray, cross: bool = False) -> np.ndarray:
    """Reduce each pixel's 3x3 neighbourhood, or the cross in it; the border is repeated outwards."""
    height, width = values.shape
    padded = np.pad(values, 1, mode="edge")
    result = values.copy()
    for y in range(3):
        for x in range(3):
            if (y, x) != (1, 1) and (not cross or 1 in (y, x)):
                ufunc(result, padded[y : y + height, x : x + width], out=result)
    return result


def _write_labels(
    picture: np.ndarray, result: PanopticResult, palette: np.ndarray, categories: Sequence[str]
) -> np.ndarray:
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    height, width = picture.shape[:2]
    font = _font(max(10, round(min(height, width) / 45)))
    scale = np.array([height, width] * 2) / np.array(result.size * 2)
    for segment in sorted(result.segments, key=lambda s: s.area):
        if segment.category >= len(categories) or (segment.iscrowd and segment.isthing):
            continue
        y0, x0, y1, x1 = (np.array(segment.box) * scale).tolist()
        name = categories[segment.category].split("--")[-1].replace("-", " ")
        text = name if segment.score is None else f"{name} {segment.score:.2f}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        if right > 1.5 * (x1 - x0) or bottom > 0.8 * (y1 - y0):
            continue
        at = _label_spot(result.id_map, segment.id, scale)
        x = min(max(0.0, at[1] - right / 2), max(0.0, width - right - 2))
        y = min(max(0.0, at[0] - bottom / 2), max(0.0, height - bottom - 2))
        color = tuple(palette[segment.category].tolist())
        draw.rectangle((x + left - 3, y + top - 2, x + right + 3, y + bottom + 2), fill=color)
        draw.text((x, y), text, fill=readable_on(color), font=font)
    return np.asarray(image)


def _label_spot(id_map: np.ndarray, segment: int, scale: np.ndarray) -> tuple[float, float]:
    """A point of the segment, near its middle: the median row, and in it the median column (photo pixels)."""
    rows, columns = np.nonzero(id_map == segment)
    if not len(rows):
        return 0.0, 0.0
    row = rows[len(rows) // 2]
    column = np.median(columns[rows == row])
    return float(row * scale[0]), float(column * scale[1])


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow < 10.1 or built without FreeType has one small size
        return ImageFont.load_default()


def draw_boxes(
    photo: np.ndarray,
    boxes: np.ndarray,
    classes: np.ndarray | None = None,
    palette: Palette | None = None,
    texts: Sequence[str] | None = None,
    width: int = 2,
) -> np.ndarray:
    """The photo with boxes drawn on it, for looking at proposals, targets and detections.

    Parameters
    ----------
    photo : uint8 `H x W x 3`
    boxes : `N x 4`, `(y0, x0, y1, x1)` in pixels, exclusive lower-right corner; non-finite ones are left out
    classes : `N` indices into the palette, None for one colour each
    palette : a row `r, g, b` a class
    texts : `N` short texts, one at each box
    width : of the lines, pixels

    Returns
    -------
    uint8 `H x W x 3`
    """
    boxes = np.asarray(boxes, float).reshape(-1, 4)
    indices = np.arange(len(boxes)) if classes is None else np.asarray(classes, np.int64)
    colors = spread_palette(256) if palette is None else as_palette(palette)
    image = Image.fromarray(np.ascontiguousarray(photo))
    draw = ImageDraw.Draw(image)
    font = _font(11)
    for i, (y0, x0, y1, x1) in enumerate(boxes.tolist()):
        if not np.isfinite([y0, x0, y1, x1]).all():
            continue
        color = tuple(colors[int(indices[i]) % 256].tolist())
        # the corner is exclusive: the last pixel inside is drawn
        box = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))
        draw.rectangle(box, outline=color, width=width)
        if texts is not None:
            area = draw.textbbox((x0 + width, y0 + width), texts[i], font=font)
            draw.rectangle(area, fill=color)
            draw.text((x0 + width, y0 + width), texts[i], fill=readable_on(color), font=font)
    return np.asarray(image)
