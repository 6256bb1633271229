"""Contact sheets: images of a data set with their masks drawn over them, and a legend of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from seamseg.data.folder import DatasetFolder
from seamseg.data.images import open_image
from seamseg.formats.metadata import ImageInfo, Metadata
from seamseg.panoptic_map import VOID
from seamseg.prepare.check import ImageCheck, OneImageFolder, Report
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.parallel import parallel_map

_WIDTH, _COLUMNS, _WIDEST = 1472, 4, 960
_SHAPES = 5 / 9, 1.0  # height over width of a tile, from and to
_GAP, _LINE = 8, 14
_NAME = 60
_BACKGROUND, _TEXT, _DIM = (24, 24, 24), (230, 230, 230), (130, 130, 130)
_LEAST_AREA = 40  # smaller things have no edge in the sheet, which would cover them


def write_contact_sheet(path: Path, report: Report, count: int = 24, workers: int | None = None) -> int:
    """Write a JPEG or PNG with `count` images of a data set, image and mask blended.

    Images are chosen to show each class, if `count` allows it, and then evenly; images with errors are skipped. Things
    have white edges, crowds are hatched, void is dark. Names of classes that are not in the sheet are dim.

    Returns
    -------
    number of images in the sheet
    """
    folder = DatasetFolder(report.root)
    chosen = choose_images(report.images, count)
    splits = {i: name for name in folder.splits for i in _listed(folder, name)}
    columns = min(_COLUMNS, max(1, len(chosen)))
    width = min(_WIDTH // columns - _GAP, _WIDEST)
    shapes = [info.size[0] / info.size[1] for info in map(folder.info, chosen)]
    limits = (round(width * float(np.clip(np.median(shapes or [0]), *_SHAPES))), width)
    read = partial(_tile_or_none, root=report.root, classes=folder.metadata.without_images(), limits=limits)
    tiles = [
        (tile, f"{splits.get(i, '-')}: {i}")
        for i, tile in zip(chosen, parallel_map(read, [folder.info(i) for i in chosen], workers))
        if tile is not None
    ]
    shown = {category for check in report.images if check.id in chosen for category in check.segments}
    sheet = _compose(tiles, columns, width, folder.metadata, shown)
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG" if path.suffix.lower() == ".png" else "JPEG", quality=88)
    return len(tiles)


def choose_images(images: Sequence[ImageCheck], count: int) -> list[str]:
    """Choose images without errors: first those with a class that is not shown yet, then evenly; return their ids."""
    whole = [check for check in images if not any(p.is_error for p in check.problems)]
    seen: set[int] = set()
    chosen: list[str] = []
    remaining = list(whole)
    while remaining and len(chosen) < count:
        best = max(remaining, key=lambda check: len(set(check.segments) - seen))
        if not set(best.segments) - seen:
            break
        seen |= set(best.segments)
        chosen.append(best.id)
        remaining.remove(best)
    rest = [check.id for check in remaining]
    wanted = min(count - len(chosen), len(rest))
    chosen += [rest[k * len(rest) // wanted] for k in range(wanted)]
    return sorted(chosen)


def draw_tile(
    photo: Image.Image, layers: np.ndarray, info: ImageInfo, classes: Metadata, limits: tuple[int, int]
) -> Image.Image:
    """Draw a small image blended with its class colours, with edges of things and hatched crowds.

    `limits` is the largest height and width.
    """
    scale = min(limits[0] / info.size[0], limits[1] / info.size[1])
    height, width = (max(1, round(side * scale)) for side in info.size)
    rows = (np.arange(height) * info.size[0] // height)[:, None]
    columns = np.arange(width) * info.size[1] // width
    small = layers[:, rows, columns]
    ids = small[0].copy()
    for layer in small[1:]:
        np.copyto(ids, layer, where=ids == 0)
    palette = np.zeros((VOID + 1, 3), dtype=np.float32)
    palette[: classes.num_classes] = classes.palette
    category = np.asarray(info.cat)[ids]
    base = np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    blended = np.where((category == VOID)[..., None], base * 0.3, base * 0.5 + palette[category] * 0.5)
    diagonal = (np.arange(height)[:, None] + np.arange(width)) % 6 < 2
    blended[(np.asarray(info.iscrowd)[ids] > 0) & diagonal] = 0
    outlined = (category >= classes.num_stuff) & (category != VOID) & (np.bincount(ids.ravel())[ids] >= _LEAST_AREA)
    blended[_edges(ids, outlined)] = 255
    return Image.fromarray(blended.astype(np.uint8))


def _edges(ids: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the pixels of `inside` that are 4-adjacent to another id: one of a pair where both are inside."""
    edge = np.zeros(ids.shape, dtype=bool)
    for one, other in (((slice(1, None),), (slice(-1),)), ((slice(None), slice(1, None)), (slice(None), slice(-1)))):
        differ = ids[one] != ids[other]
        edge[one] |= differ & inside[one]
        edge[other] |= differ & inside[other] & ~inside[one]
    return edge


def _tile_or_none(info: ImageInfo, root: Path, classes: Metadata, limits: tuple[int, int]) -> Image.Image | None:
    folder = OneImageFolder(root, info)
    try:
        photo, layers = open_image(folder.image_path(info.id)), folder.read_mask(info.id)
        return draw_tile(photo, layers, info, classes, limits)
    except InputError:
        return None


def _listed(folder: DatasetFolder, split: str) -> list[str]:
    try:
        return [image.id for image in folder.split(split)]
    except InputError:
        return []


def _compose(
    tiles: Sequence[tuple[Image.Image, str]], columns: int, width: int, classes: Metadata, shown: set[int]
) -> Image.Image:
    """Compose rows of tiles with their names below, then the legend."""
    rows = [tiles[k : k + columns] for k in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile, _ in row) + _LINE + _GAP for row in rows]
    names = [
        _printable(name, _NAME) + ("" if classes.is_thing(k) else " (stuff)")
        for k, name in enumerate(classes.categories)
    ]
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    column = 40 + round(max((measure.textlength(name) for name in names), default=0))
    across = max(1, _WIDTH // column)
    legend_top = sum(heights) + _GAP
    size = (max(_WIDTH, column), legend_top + (-(-len(names) // across) + 1) * _LINE)
    sheet = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    top = _GAP // 2
    for row, height in zip(rows, heights):
        for number, (tile, name) in enumerate(row):
            left = number * (width + _GAP) + _GAP // 2
            sheet.paste(tile, (left, top))
            draw.text((left, top + tile.height + 1), _printable(name, (width - 12) // 6), fill=_TEXT)
        top += height
    for k, name in enumerate(names):
        left, top = k % across * column + _GAP // 2, legend_top + k // across * _LINE
        draw.rectangle((left, top + 2, left + 16, top + _LINE - 3), fill=classes.palette[k], outline=_TEXT)
        draw.text((left + 22, top), name, fill=_TEXT if k in shown else _DIM)
    return sheet


def _printable(text: str, length: int) -> str:
    # the default font of Pillow may have Latin letters only, and texts of several lines have no length
    text = text.encode("latin-1", errors="replace").decode("latin-1")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= length else "..." + text[3 - length :]
