"""Detections of a network as masks at the size of the photo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from seamseg.ops.paste import paste_mask
from seamseg.structures import Prediction


@dataclass(frozen=True)
class PastedDetection:
    """A detection in pixel coordinates of the photo.

    Attributes
    ----------
    category : thing class, from 0
    score : 0 to 1
    box : `(y0, x0, y1, x1)`
    crop : bool, the part of the mask with all its pixels; None if the network has no masks
    corner : `(y, x)` of the crop
    """

    category: int
    score: float
    box: tuple[float, float, float, float]
    crop: np.ndarray | None
    corner: tuple[int, int] = (0, 0)


def paste_detections(prediction: Prediction, size: tuple[int, int]) -> Iterator[PastedDetection]:
    """Iterate over all detections before the fusion, which may overlap; masks are pasted one by one.

    Parameters
    ----------
    prediction : at the network's size
    size : `(height, width)` of the photo
    """
    factors = torch.tensor([size[0] / prediction.size[0], size[1] / prediction.size[1]], dtype=torch.float64)
    boxes = (prediction.boxes.detach().double().cpu() * factors.repeat(2)).float()
    logits = None if prediction.mask_logits is None else prediction.mask_logits.detach().cpu()
    classes, scores = prediction.classes.tolist(), prediction.scores.detach().float().tolist()
    for k, (box, category, score) in enumerate(zip(boxes, classes, scores)):
        y0, x0, y1, x1 = box.double().tolist()
        crop, corner = None, (0, 0)
        if logits is not None:
            pixels, region = paste_mask(logits[k], box, size)
            crop, corner = pixels.numpy(), (region[0], region[1])
        yield PastedDetection(int(category), score, (y0, x0, y1, x1), crop, corner)
