"""Results as labels of FiftyOne, which is imported when they are made: that takes seconds and starts its database.

FiftyOne has no panoptic labels: a panoptic map becomes a semantic mask and the things.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from seamseg.panoptic_map import VOID
from seamseg.utils.errors import InputError


class LabelledObject(NamedTuple):
    """An object: class, score, box `(y0, x0, y1, x1)` in pixels, and the mask in this box, if it has one."""

    name: str
    score: float | None
    box: tuple[float, float, float, float]
    mask: np.ndarray | None


def segmentation_label(classes: np.ndarray) -> Any:
    """Return `fiftyone.Segmentation` of a class map `H x W` (255 void): class index + 1, 0 void."""
    mask = np.where(classes == VOID, 0, classes.astype(np.uint16) + 1)
    # 255 only if there are 255 classes
    return _import().Segmentation(mask=mask.astype(np.uint8))


def classification_label(name: str, probability: float) -> Any:
    """Return `fiftyone.Classification` of the most probable class."""
    return _import().Classification(label=name, confidence=probability)


def detections_label(objects: Iterable[LabelledObject], size: tuple[int, int]) -> Any:
    """Return `fiftyone.Detections`, with boxes `[x, y, width, height]` relative to an image of `(height, width)`."""
    fiftyone, (height, width) = _import(), size
    found = []
    for name, score, (y0, x0, y1, x1), mask in objects:
        box = [float(v) for v in (x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height)]
        confidence = None if score is None else float(score)
        found.append(fiftyone.Detection(label=name, bounding_box=box, confidence=confidence, mask=mask))
    return fiftyone.Detections(detections=found)


def cropped(mask: np.ndarray, corner: tuple[int, int] = (0, 0)) -> tuple[tuple[int, int, int, int], np.ndarray] | None:
    """Return the box of the pixels of a mask whose upper left pixel is `corner`, and the mask in it; None if empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return None
    (y0, y1), (x0, x1) = (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)
    y, x = corner
    return (int(y + y0), int(x + x0), int(y + y1), int(x + x1)), np.ascontiguousarray(mask[y0:y1, x0:x1])


def _import() -> Any:
    try:
        import fiftyone
    except ImportError as error:
        raise InputError("to_fiftyone() needs the library: pip install fiftyone") from error
    return fiftyone
