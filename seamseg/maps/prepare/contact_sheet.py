"""Contact sheets: images of a data set with their masks drawn over them, and a legend of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from seamseg.maps.evaluation.segments import flatten_layers
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata
from seamseg.maps.images import open_image
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.check import ImageCheck, OneImageFolder, Report, check_lists
from seamseg.maps.visualize.overlay import BACKGROUND, LINE, TEXT, draw_legend, printable
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.parallel import parallel_map

_WIDTH, _COLUMNS, _WIDEST = 1472, 4, 960
_SHAPES = 5 / 9, 1.0  # height over width of a tile, from and to
_GAP = 8
_LEAST_AREA = 40  # smaller things have no edge in the sheet, which would cover them


def write_contact_sheet(path: Path, report: Report, count: int = 24, workers: int | None = None) -> int:
    """Write a JPEG or PNG with `count` images of a data set, image and mask blended; return the number of images in it.

    Images are chosen to show each class, if `count` allows it, and then evenly; images with errors are skipped. Things
    have white edges, crowds are hatched, void is dark. Names of classes that are not in the sheet are dim.
    """
    folder = DatasetFolder(report.root)
    chosen = choose_images(report.images, count)
    splits = {i: name for name, ids in check_lists(folder)[0].items() for i in ids}
    columns = min(_COLUMNS, max(1, len(chosen)))
    width = min(_WIDTH // columns - _GAP, _WIDEST)
    shapes = [info.size[0] / info.size[1] for info in map(folder.info, chosen)]
    limits = (round(width * float(np.clip(np.median(shapes or [0]), *_SHAPES))), width)
    read = partial(_tile_or_none, root=report.root, classes=replace(folder.metadata, images=[]), limits=limits)
    tiles = [
        (tile, f"{splits.get(i, '-')}: {i}")
        for i, tile in zip(chosen, parallel_map(read, [folder.info(i) for i in chosen], workers))
        if tile is not None
    ]
    wanted = set(chosen)
    shown = {category for check in report.images if check.id in wanted for category in check.segments}
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
    ids = flatten_layers(layers[:, rows, columns])
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


def _compose(
    tiles: Sequence[tuple[Image.Image, str]], columns: int, width: int, classes: Metadata, shown: set[int]
) -> Image.Image:
    rows = [tiles[k : k + columns] for k in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile, _ in row) + LINE + _GAP for row in rows]
    legend = draw_legend(classes.categories, classes.palette, classes.num_stuff, _WIDTH, shown)
    sheet = Image.new("RGB", (legend.width, sum(heights) + _GAP + legend.height), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    top = _GAP // 2
    for row, height in zip(rows, heights):
        for number, (tile, name) in enumerate(row):
            left = number * (width + _GAP) + _GAP // 2
            sheet.paste(tile, (left, top))
            draw.text((left, top + tile.height + 1), printable(name, (width - 12) // 6), fill=TEXT)
        top += height
    sheet.paste(legend, (0, sheet.height - legend.height))
    return sheet
