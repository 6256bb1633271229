"""Outputs of a network of queries, one class and one mask each (arXiv 2107.06278), as a prediction; no torch.

A prediction has both forms: the masks of the queries, which :func:`seamseg.fusion.merge_queries` merges as the paper
does, and detections with a class map, as other networks have, for all else: tiles, average precision, anonymising,
and formats of single objects.
"""

from __future__ import annotations

import numpy as np

from seamseg.maps.idmaps.upsampled import Size, best_classes, mask_boxes
from seamseg.maps.predictions import ArrayPrediction, Prediction, QueryMasks
from seamseg.results.anonymize import LEAST_SCORE as LEAST_HIDDEN_SCORE
from seamseg.results.detections import MOST_DETECTIONS

LEAST_SCORE = 0.05
"""Objects of a smaller probability are no detections."""
MASK_SIDE = 112
"""Cells of the mask of a detection; with 28 objects lose about 1 % of PQ."""
_ROWS = 16
"""Rows of masks whose probabilities are computed at a time, which bounds the temporary memory."""


def prediction_of_queries(
    class_logits: np.ndarray,
    mask_logits: np.ndarray,
    size: Size,
    padded_size: Size,
    classes: np.ndarray,
    num_stuff: int,
) -> ArrayPrediction:
    """Make the prediction of one image from class logits `Q x (C + 1)`, the last one of "no object", and mask logits.

    Mask logits, `Q x h x w`, are of the whole padded input of `padded_size`, whose upper left part of `size` is the
    image, `(height, width)` each. `classes` has the class (stuff first, less than 255) of each of the `C` columns.

    The result has `queries`. Its detections are the pairs of a query and a thing of a probability of at least
    :data:`LEAST_SCORE`, without pairs that have no pixel: all of at least
    :data:`seamseg.results.anonymize.LEAST_SCORE`, and others up to :data:`MOST_DETECTIONS` in total. The class of a
    pixel is the one with the highest sum of class x mask probability over all queries. ValueError if shapes do not
    match.
    """
    count, columns = class_logits.shape
    if mask_logits.shape[:1] != (count,) or classes.shape != (columns - 1,):
        raise ValueError(
            f"prediction_of_queries: {count} queries of {columns} columns do not match masks {mask_logits.shape} and "
            f"{classes.shape} classes"
        )
    masks = np.ascontiguousarray(mask_logits, np.float32)
    exponentials = np.exp(class_logits.astype(np.float64) - class_logits.max(1, keepdims=True))
    probabilities = (exponentials / exponentials.sum(1, keepdims=True)).astype(np.float32)
    best = probabilities.argmax(1)
    kept = np.flatnonzero(best < len(classes))
    queries = QueryMasks(
        classes[best[kept]].astype(np.int64), probabilities[kept, best[kept]], masks[kept], padded_size
    )
    boxes, things, scores, crops = _detections(probabilities[:, :-1], masks, size, padded_size, classes - num_stuff)
    columns_of_pixels = best_classes(_class_map(probabilities[:, :-1], masks), padded_size, size)
    semantic = classes.astype(np.uint8)[columns_of_pixels]
    return Prediction(boxes, things, scores, crops, semantic, size, queries=queries)


def _class_map(probabilities: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the sum over queries of class x mask probability, `C x h x w`."""
    total = np.empty((probabilities.shape[1], *masks.shape[1:]), np.float32)
    for start in range(0, masks.shape[1], _ROWS):
        band = masks[:, start : start + _ROWS]
        with np.errstate(over="ignore"):
            total[:, start : start + _ROWS] = np.tensordot(probabilities, 1 / (1 + np.exp(-band)), (0, 0))
    return total


def _detections(
    probabilities: np.ndarray, masks: np.ndarray, size: Size, padded_size: Size, things: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes, classes, scores and mask logits of detections, by class and falling score.

    `things` is the class of each column, from the first thing; negative for stuff.
    """
    query, column = np.nonzero((probabilities >= LEAST_SCORE) & (things >= 0))
    scores = probabilities[query, column]
    # which are hidden must not depend on how many there are
    count = max(MOST_DETECTIONS, np.count_nonzero(scores >= LEAST_HIDDEN_SCORE))
    best = np.argsort(-scores, kind="stable")[:count]
    query, column = query[best], column[best]
    found, row = np.unique(query, return_inverse=True)
    masks = masks[found]
    boxes = mask_boxes(masks, padded_size, size)
    crops = np.zeros((len(found), MASK_SIDE, MASK_SIDE), np.float32)
    for crop, mask, box in zip(crops, masks, boxes):
        crop[:] = _cropped(mask, box, padded_size)
    order = np.argsort(things[column], kind="stable")
    order = order[boxes[row[order], 2] > 0]
    row, query, column = row[order], query[order], column[order]
    return boxes[row], things[column].astype(np.int64), probabilities[query, column], crops[row]


def _cropped(mask: np.ndarray, box: np.ndarray, padded_size: Size) -> np.ndarray:
    """Sample the logits of a mask at the centres of the cells of a box in pixels of the padded input."""
    for axis in (0, 1):
        cells = mask.shape[axis]
        centres = box[axis] + (np.arange(MASK_SIDE) + 0.5) * ((box[axis + 2] - box[axis]) / MASK_SIDE)
        position = (centres * (cells / padded_size[axis]) - 0.5).clip(0, cells - 1)
        low = position.astype(np.int64)
        weight = np.expand_dims((position - low).astype(np.float32), 1 - axis)
        mask = mask.take(low, axis) * (1 - weight) + mask.take(np.minimum(low + 1, cells - 1), axis) * weight
    return mask
