"""The block of one image: a small photo, two small index maps, and the list of its segments."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from seamseg.evaluation.record import Evaluation, ImageRecord, SegmentRecord
from seamseg.formats.coco_panoptic import read_id_png
from seamseg.idmaps.resize import resize_nearest
from seamseg.utils.errors import InputError
from seamseg.utils.files import join_inside
from seamseg.utils.limits import refuse_postscript

JPEG_QUALITY = 80
NARROW = 255
"""Maps of up to this many segments have one byte a pixel, others two, low byte first."""
MOST_SEGMENTS = 65_535


def picture(
    runs: Sequence[tuple[Evaluation, ImageRecord]], photos: Path | None, size: int
) -> tuple[dict[str, Any], bool]:
    """What the page shows of one image.

    Parameters
    ----------
    runs : the image in the run, and in the one that it is compared with, if any
    photos : folder of the photos
    size : longest side of the photo and the maps in pixels; smaller images stay as they are

    Returns
    -------
    content : `width`, `height`, `photo` (JPEG, base64, or None), and `sides`, one a run: the index maps `truth` (None:
        that of the first run) and `prediction`, see :func:`pack`, and the segments that their indices 1, 2, ... stand
        for, as lists: id, class, area, outcome, partner (index on the other side, 0 none), IoU, score
    has_photo : whether there is a photo

    Raises
    ------
    InputError
        if a map is missing, broken or not of the size that was evaluated
    """
    record = runs[0][1]
    shape = _shape(record, size)
    sides = []
    for k, (evaluation, image) in enumerate(runs):
        same = k > 0 and _segments_of(image) == _segments_of(record)
        truth = evaluation.ground_truth.folder, image.ground_truth_png, image.ground_truth
        sides.append(
            {
                "truth": None if same else _map(*truth, image, shape),
                "prediction": _map(evaluation.prediction.folder, image.prediction_png, image.prediction, image, shape),
                "truth_segments": _listed(image.ground_truth, image.prediction),
                "prediction_segments": _listed(image.prediction, image.ground_truth),
            }
        )
    photo = _photo(photos, record.photo, shape)
    encoded = None if photo is None else base64.b64encode(photo).decode("ascii")
    return {"width": shape[1], "height": shape[0], "photo": encoded, "sides": sides}, photo is not None


def pack(indices: np.ndarray, segments: int) -> str:
    """An index map as text: each row XOR the one above, zlib, base64. The page undoes it without loss.

    Most pixels are those of the row above, and zlib likes zeros. A PNG would pass through the colour management of the
    browser, and its canvas has 8 bits a channel.
    """
    narrow = indices.astype(np.uint8 if segments <= NARROW else "<u2")
    narrow[1:] ^= narrow[:-1].copy()
    return base64.b64encode(zlib.compress(narrow.tobytes(), 9)).decode("ascii")


def _shape(record: ImageRecord, size: int) -> tuple[int, int]:
    scale = min(1.0, size / max(record.width, record.height))
    return max(1, round(record.height * scale)), max(1, round(record.width * scale))


def _segments_of(image: ImageRecord) -> list[tuple[int, int, int]]:
    return [(s.id, s.category, s.area) for s in image.ground_truth]


def _map(folder: Path, name: str, segments: list[SegmentRecord], image: ImageRecord, shape: tuple[int, int]) -> str:
    path = join_inside(folder, name)
    if path is None:
        raise InputError(f"{folder}: image {image.image_id} names its map {name!r}, which is not below the folder")
    if len(segments) > MOST_SEGMENTS:
        raise InputError(f"{path}: {len(segments)} segments; the page holds up to {MOST_SEGMENTS} an image")
    ids = read_id_png(path)
    if ids.shape != (image.height, image.width):
        raise InputError(
            f"{path}: {ids.shape[1]} x {ids.shape[0]} pixels, {image.width} x {image.height} when it was evaluated; "
            "evaluate again with --out"
        )
    return pack(_renumbered(resize_nearest(ids, shape), [s.id for s in segments]), len(segments))


def _renumbered(ids: np.ndarray, known: list[int]) -> np.ndarray:
    """Each id as its place in `known`, from 1; 0 for ids that are not there."""
    if not known:
        return np.zeros(ids.shape, np.int64)
    order = np.argsort(known)
    ranked = np.asarray(known, np.int64)[order]
    at = np.minimum(np.searchsorted(ranked, ids), len(ranked) - 1)
    return np.where(ranked[at] == ids, order[at] + 1, 0)


def _listed(segments: list[SegmentRecord], others: list[SegmentRecord]) -> list[list[Any]]:
    place = {s.id: k for k, s in enumerate(others, start=1)}
    return [
        [s.id, s.category, s.area, s.outcome, 0 if s.partner is None else place.get(s.partner, 0),
         None if s.iou is None else round(s.iou, 4), None if s.score is None else round(s.score, 4)]
        for s in segments
    ]  # fmt: skip


def _photo(folder: Path | None, name: str | None, shape: tuple[int, int]) -> bytes | None:
    """The JPEG of a photo; None if there is none that can be read."""
    path = None if folder is None or name is None else join_inside(folder, name)
    if path is None:
        return None
    size = shape[::-1]
    try:
        with Image.open(path) as image:
            refuse_postscript(image)
            longest = max(size)
            image.draft("RGB", (longest, longest))  # a JPEG is decoded at a fraction of its size
            upright = ImageOps.exif_transpose(image).convert("RGB")
            small = upright.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True, progressive=False)
    return buffer.getvalue()
