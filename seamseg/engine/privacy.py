"""What must be hidden in a photo so that nothing of some classes can be recognised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seamseg.errors import InputError
from seamseg.evaluation.detections import paste_detections
from seamseg.maps.resize import resize_nearest
from seamseg.panoptic_map import PanopticResult
from seamseg.structures import Prediction
from seamseg.visualize.anonymize import anonymize, clusters
from seamseg.visualize.region import Region, Style

LEAST_SCORE = 0.2
"""Detections that are hidden, though the panoptic map may leave them out: to hide too much costs little."""


def private_regions(
    result: PanopticResult,
    prediction: Prediction | None,
    classes: Sequence[int],
    num_stuff: int,
    least_score: float = LEAST_SCORE,
) -> Iterator[Region]:
    """All that may be of some classes, a region an object.

    These are the segments of the map; detections that the map leaves out, because their score is low or others cover
    them; and pixels that the semantic head takes for such a class though no object was found: crowds, parts of objects,
    spots too small for the map.

    Parameters
    ----------
    result : the panoptic map, at the size of the photo
    prediction : what the network said; without it the segments are all that is known
    classes : indices, stuff first
    num_stuff : stuff classes
    least_score : of detections, 0 to 1

    Raises
    ------
    InputError
        if the score is out of range
    """
    if not 0 <= least_score <= 1:
        raise InputError(f"the least score of what is hidden must be between 0 and 1, not {least_score}")
    chosen = set(classes)
    rest = np.zeros(result.size, bool)
    covered = np.zeros(result.size, bool)
    for segment in result.segments:
        if segment.category not in chosen:
            continue
        y0, x0, y1, x1 = (int(v) for v in segment.box)
        mask = result.id_map[y0:y1, x0:x1] == segment.id
        if segment.isthing and not segment.iscrowd:
            covered[y0:y1, x0:x1] |= mask
            yield Region(mask, (y0, x0))
        else:
            rest[y0:y1, x0:x1] |= mask
    if prediction is not None:
        for found in paste_detections(prediction, result.size):
            if found.category + num_stuff not in chosen or found.score < least_score:
                continue
            region = _region_of(found.crop, found.corner, found.box, result.size)
            (y, x), (height, width) = region.corner, region.mask.shape
            covered[y : y + height, x : x + width] |= region.mask
            yield region
        if prediction.semantic is not None:
            semantic = prediction.semantic.cpu().numpy()
            rest |= resize_nearest(np.isin(semantic, list(chosen)), result.size)
    yield from clusters(rest & ~covered)


def hide_classes(
    rgb: np.ndarray,
    result: PanopticResult,
    prediction: Prediction | None,
    classes: Sequence[int],
    num_stuff: int,
    style: Style = "blur",
    least_score: float = LEAST_SCORE,
) -> np.ndarray:
    """The photo `H x W x 3` without anything of some classes, see :func:`private_regions`; InputError as there."""
    if style not in ("blur", "pixels"):
        raise InputError(f"style must be blur or pixels, not {style!r}")
    return anonymize(rgb, private_regions(result, prediction, classes, num_stuff, least_score), style)


def _region_of(
    crop: np.ndarray | None, corner: tuple[int, int], box: tuple[float, ...], size: tuple[int, int]
) -> Region:
    """The mask of a detection; its whole box if it has none."""
    if crop is not None:
        return Region(crop, corner)
    y0, x0 = max(0, int(box[0])), max(0, int(box[1]))
    y1, x1 = min(size[0], int(np.ceil(box[2]))), min(size[1], int(np.ceil(box[3])))
    return Region(np.ones((max(0, y1 - y0), max(0, x1 - x0)), bool), (y0, x0))
