"""The JSON block of one image in the report: a reduced image, index maps, and lists of the segments."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.maps.evaluation.record import MAPS, Evaluation, ImageRecord, SegmentRecord
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.images import open_reduced
from seamseg.utils.errors import InputError
from seamseg.utils.files import join_inside

JPEG_QUALITY = 80
ONE_BYTE_SEGMENTS = 255
"""Maps of up to this many segments have one byte per pixel, others two, low byte first."""


def image_block(
    runs: Sequence[tuple[Evaluation, ImageRecord]], photos: Path | None, size: int
) -> tuple[dict[str, Any], bool, list[str]]:
    """Build the block of one image from its evaluation and record in each run, at most `size` pixels a side.

    It has `width`, `height`, `photo` (JPEG, base64, or None), and `results`, one per run: the index maps `truth` (None:
    as in the first run) and `prediction`, see :func:`encode_index_map`, and the segments of their indices 1, 2, ...
    as lists: id, class, area, outcome, partner (index in the other map, 0 none), IoU, score; and by name the `maps` of
    custom heads, as the image.

    Also returns whether there is an image, and a line for each map that is missing, broken or not of the evaluated
    size, whose pixels are of no segment.
    """
    record = runs[0][1]
    shape = reduced_shape(record.height, record.width, size)
    results, problems = [], list[str]()
    for k, (evaluation, image) in enumerate(runs):
        truths = [[(s.id, s.category, s.area) for s in one.ground_truth] for one in (image, record)]
        same = k > 0 and truths[0] == truths[1]
        truth = evaluation.ground_truth.folder, image.ground_truth_png, image.ground_truth
        prediction = evaluation.prediction.folder, image.prediction_png, image.prediction
        results.append(
            {
                "truth": None if same else _map(*truth, image, shape, problems),
                "prediction": _map(*prediction, image, shape, problems),
                "truth_segments": _listed(image.ground_truth, image.prediction),
                "prediction_segments": _listed(image.prediction, image.ground_truth),
                "maps": {name: jpeg_text(evaluation.folder / MAPS, file, shape) for name, file in image.maps.items()},
            }
        )
    photo = jpeg_text(photos, record.photo, shape)
    return {"width": shape[1], "height": shape[0], "photo": photo, "results": results}, photo is not None, problems


def encode_index_map(indices: np.ndarray, segments: int) -> str:
    """Encode an index map as text: each row XORed with the row above, zlib, base64.

    Most pixels equal those of the row above, and zeros compress well. A PNG would be subject to the colour management
    of the browser, and a canvas has 8 bits per channel.
    """
    values = indices.astype(np.uint8 if segments <= ONE_BYTE_SEGMENTS else "<u2")
    values[1:] ^= values[:-1].copy()
    return base64.b64encode(zlib.compress(values.tobytes(), 9)).decode("ascii")


def reduced_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """Return `(height, width)` of an image whose longest side is reduced to `size` pixels; it is never enlarged."""
    scale = min(1.0, size / max(width, height))
    return max(1, round(height * scale)), max(1, round(width * scale))


def encode_jpeg(image: Image.Image, shape: tuple[int, int]) -> str:
    """Encode an RGB image, resized to `(height, width)`, as text: JPEG, base64."""
    small = image.resize(shape[::-1], Image.Resampling.LANCZOS, reducing_gap=2.0)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True, progressive=False)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _map(
    folder: Path,
    name: str,
    segments: list[SegmentRecord],
    image: ImageRecord,
    shape: tuple[int, int],
    problems: list[str],
) -> str:
    try:
        path = join_inside(folder, name)
        ids = read_id_png(path)
        if ids.shape != (image.height, image.width):
            raise InputError(
                f"{path}: has {ids.shape[1]} x {ids.shape[0]} pixels, but {image.width} x {image.height} were "
                "evaluated; evaluate again with `seamseg evaluate --out`"
            )
        numbers = [(s.id, k) for k, s in enumerate(segments, start=1)]
        indices = look_up(resize_nearest(ids, shape), numbers, np.uint16)
    except InputError as error:
        problems.append(f"{image.image_id}: {error}")
        indices = np.zeros(shape, np.uint16)
    return encode_index_map(indices, len(segments))


def _listed(segments: list[SegmentRecord], others: list[SegmentRecord]) -> list[list[Any]]:
    index = {s.id: k for k, s in enumerate(others, start=1)}
    return [
        [s.id, s.category, s.area, s.outcome, 0 if s.partner is None else index.get(s.partner, 0),
         None if s.iou is None else round(s.iou, 4), None if s.score is None else round(s.score, 4)]
        for s in segments
    ]  # fmt: skip


def jpeg_text(folder: Path | None, name: str | None, shape: tuple[int, int]) -> str | None:
    """Encode an image as JPEG in base64; None if there is none that can be read."""
    if folder is None or name is None:
        return None
    with suppress(InputError):
        image, _ = open_reduced(join_inside(folder, name), shape)
        return encode_jpeg(image, shape)
    return None
