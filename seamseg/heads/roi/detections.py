"""From the ROI head's outputs to detections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.ops.nms import nms


@dataclass(frozen=True)
class DetectionSelector:
    """The detections worth keeping (SPEC section 4 "Detections").

    Parameters
    ----------
    nms_threshold : of two boxes of a class with at least this IoU only the better stays
    score_threshold : scores must be above
    max_predictions : at most this many of an image, the best of all classes
    """

    nms_threshold: float = 0.3
    score_threshold: float = 0.05
    max_predictions: int = 100

    @torch.no_grad()
    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select the detections of one image.

        Parameters
        ----------
        boxes : `K x things x 4`, one box a proposal and class, clipped to the image
        scores : `K x (things + 1)`, class 0 background

        Returns
        -------
        boxes : `D x 4`
        classes : int64 `D`, 0 = first thing
        scores : `D`

        Class by class (rising), then by falling score; by falling score alone when some had to be left out.
        """
        not_empty = (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        cls, row = torch.nonzero(((scores[:, 1:] > self.score_threshold) & not_empty).t(), as_tuple=True)
        boxes, scores = boxes[row, cls], scores[row, cls + 1]

        keep = nms(boxes, scores, self.nms_threshold, groups=cls)
        keep = keep[torch.argsort(cls[keep], stable=True)]
        if 0 < self.max_predictions < keep.shape[0]:
            best = torch.argsort(scores[keep], descending=True, stable=True)
            keep = keep[best[: self.max_predictions]]
        return boxes[keep], cls[keep], scores[keep]
