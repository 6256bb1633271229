"""Detections at the size of their image, before any fusion; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.maps.idmaps.segments import areas_and_boxes, nearest_index, paste_mask, resize_nearest, sigmoid
from seamseg.maps.predictions import Prediction


@dataclass(frozen=True)
class PastedDetection:
    """A detection in pixel coordinates of the image.

    `category` is the thing class, from 0, `score` 0 to 1 and `box` `(y0, x0, y1, x1)`. `crop`, bool `h x w`, is the
    part of the mask with all its pixels, None if the network has no masks, and `corner` its `(y, x)` in the image.
    """

    category: int
    score: float
    box: tuple[float, float, float, float]
    crop: np.ndarray | None
    corner: tuple[int, int] = (0, 0)


def paste_detections(
    prediction: Prediction[Any], size: tuple[int, int], by_nearest: bool = False
) -> Iterator[PastedDetection]:
    """Iterate over all detections before the fusion, which may overlap; masks are pasted one by one.

    By default masks are sampled at `size`, `(height, width)` of the image. `by_nearest` makes them at the network's
    size and resizes them by nearest neighbour, and clips the boxes, as the original does for average precision.
    """
    prediction = prediction.on_cpu()
    factors = np.array([size[0] / prediction.size[0], size[1] / prediction.size[1]] * 2)
    boxes = (prediction.boxes.astype(np.float64) * factors).astype(np.float32)
    if by_nearest:
        boxes = boxes.clip(0, np.array(size * 2, np.float32))
    classes, scores = prediction.classes.tolist(), prediction.scores.tolist()
    own = None
    if "ids" in prediction.maps:
        own = resize_nearest(prediction.maps["ids"], size).astype(np.int32, copy=False)
        regions = areas_and_boxes(own, len(scores) + 1)[1].clip(0).astype(int).tolist()
    for k, (box, category, score) in enumerate(zip(boxes, classes, scores)):
        y0, x0, y1, x1 = box.tolist()
        crop, corner = None, (0, 0)
        if own is not None:
            top, left, bottom, right = regions[k + 1]
            crop, corner = own[top:bottom, left:right] == k + 1, (top, left)
        elif prediction.mask_logits is not None:
            where = (prediction.boxes[k], prediction.size) if by_nearest else (box, size)
            crop, region = paste_mask(sigmoid(prediction.mask_logits[k]), *where)
            corner = region[0], region[1]
            if by_nearest:
                crop, corner = resize_crop(crop, corner, prediction.size, size)
        yield PastedDetection(int(category), score, (y0, x0, y1, x1), crop, corner)


def resize_crop(
    crop: np.ndarray, corner: tuple[int, int], old: tuple[int, int], new: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Resize a part of a mask by nearest neighbour, as if with the whole mask; return the new part and its corner."""
    if old == new:
        return crop, corner
    chosen, starts = [], []
    for axis in (0, 1):
        index = nearest_index(old[axis], new[axis]) - corner[axis]
        start, stop = np.searchsorted(index, [0, crop.shape[axis]])
        chosen.append(index[start:stop])
        starts.append(int(start))
    return crop[chosen[0][:, None], chosen[1]], (starts[0], starts[1])
