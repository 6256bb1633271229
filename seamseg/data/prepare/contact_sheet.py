"""One picture of many: photos with their masks drawn over them, and the colours of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo, Metadata
from seamseg.data.prepare.check import ImageCheck, Report
from seamseg.data.prepare.parallel import parallel_map
from seamseg.errors import InputError
from seamseg.files import replacing
from seamseg.structures import VOID

_TILE = (200, 360)  # height, width of a photo in the sheet
_LINE = 14
_COLUMNS = 4
_LEGEND_COLUMN = 240
_BACKGROUND, _TEXT = (24, 24, 24), (230, 230, 230)


def write_contact_sheet(path: Path, report: Report, count: int = 24, workers: int | None = None) -> int:
    """Write a JPEG or PNG with `count` images of a data set, photo and mask blended.

    Images are chosen so that each class is seen, if `count` allows it, and then evenly; broken ones are left out.
    Things have white edges, crowds are hatched.

    Returns
    -------
    images shown
    """
    folder = DatasetFolder(report.root)
    chosen = choose_images(report.images, count)
    splits = {i: name for name in folder.splits for i in _listed(folder, name)}
    read = partial(_tile_or_none, root=report.root, classes=folder.metadata.without_images())
    tiles = [
        (tile, f"{splits.get(i, '-')}: {i}")
        for i, tile in zip(chosen, parallel_map(read, [folder.info(i) for i in chosen], workers))
        if tile is not None
    ]
    sheet = _compose(tiles, folder.metadata)
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG" if path.suffix.lower() == ".png" else "JPEG", quality=88)
    return len(tiles)


def choose_images(images: Sequence[ImageCheck], count: int) -> list[str]:
    """Ids of images without errors: first those that show a class which no other shows yet, then at even distances."""
    whole = [check for check in images if not any(p.is_error for p in check.problems)]
    seen: set[int] = set()
    chosen: list[str] = []
    waiting = list(whole)
    while waiting and len(chosen) < count:
        best = max(waiting, key=lambda check: len(set(check.segments) - seen))
        if not set(best.segments) - seen:
            break
        seen |= set(best.segments)
        chosen.append(best.id)
        waiting.remove(best)
    rest = [check.id for check in waiting]
    wanted = min(count - len(chosen), len(rest))
    chosen += [rest[k * len(rest) // wanted] for k in range(wanted)]
    return sorted(chosen)


def draw_tile(photo: Image.Image, layers: np.ndarray, info: ImageInfo, classes: Metadata) -> Image.Image:
    """A small photo, half covered by the colours of its classes, with edges of things and hatched crowds."""
    scale = min(_TILE[0] / info.size[0], _TILE[1] / info.size[1])
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
    edge = np.zeros(ids.shape, dtype=bool)
    edge[1:] |= ids[1:] != ids[:-1]
    edge[:, 1:] |= ids[:, 1:] != ids[:, :-1]
    blended[edge & (category >= classes.num_stuff) & (category != VOID)] = 255
    return Image.fromarray(blended.astype(np.uint8))


def _tile_or_none(info: ImageInfo, root: Path, classes: Metadata) -> Image.Image | None:
    folder = _OneImage(root, info)
    try:
        return draw_tile(folder.read_image(folder.image_path(info.id)), folder.read_mask(info.id), info, classes)
    except InputError:
        return None


class _OneImage(DatasetFolder):
    """Reads one image without reading the metadata again."""

    def __init__(self, root: Path, image: ImageInfo) -> None:
        self.root = root
        self._image = image

    def info(self, image_id: str) -> ImageInfo:
        return self._image


def _listed(folder: DatasetFolder, split: str) -> list[str]:
    try:
        return [image.id for image in folder.split(split)]
    except InputError:
        return []


def _compose(tiles: Sequence[tuple[Image.Image, str]], classes: Metadata) -> Image.Image:
    """Tiles in rows with their names below, then the legend."""
    cell = (_TILE[0] + _LINE + 6, _TILE[1] + 8)
    rows = -(-len(tiles) // _COLUMNS)
    width = _COLUMNS * cell[1]
    across = width // _LEGEND_COLUMN
    legend_top = rows * cell[0] + 8
    sheet = Image.new("RGB", (width, legend_top + (-(-classes.num_classes // across) + 1) * _LINE), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (tile, name) in enumerate(tiles):
        left, top = number % _COLUMNS * cell[1] + 4, number // _COLUMNS * cell[0] + 4
        sheet.paste(tile, (left, top))
        draw.text((left, top + _TILE[0] + 1), _printable(name, 58), fill=_TEXT)
    for k, name in enumerate(classes.categories):
        left, top = k % across * _LEGEND_COLUMN + 4, legend_top + k // across * _LINE
        draw.rectangle((left, top + 2, left + 16, top + _LINE - 3), fill=classes.palette[k], outline=_TEXT)
        kind = "" if classes.is_thing(k) else " (stuff)"
        draw.text((left + 22, top), _printable(name, 26) + kind, fill=_TEXT)
    return sheet


def _printable(text: str, length: int) -> str:
    # the font that comes with Pillow may have Latin letters only
    text = text.encode("latin-1", errors="replace").decode("latin-1")
    return text if len(text) <= length else "..." + text[3 - length :]
