"""Selection of detections among the scored boxes of an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.config.sections import Roi
from seamseg.ops.nms import nms


@dataclass(frozen=True)
class DetectionSelector:
    """Selection of detections among scored boxes (docs/contract.md, section 4 "Detections")."""

    config: Roi

    @torch.no_grad()
    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes `D x 4`, classes `D` (0 = first thing) and scores `D` of the detections of one image.

        From a box for each proposal and class, `K x things x 4`, clipped to the image, and scores `K x (things + 1)`,
        class 0 background. Ordered by class, then by decreasing score; by score alone when some had to be left out.
        """
        cls, row = torch.nonzero(self.usable(boxes, scores[:, 1:]).t(), as_tuple=True)
        boxes, scores = boxes[row, cls], scores[row, cls + 1]

        keep = nms(boxes, scores, self.config.nms_threshold, groups=cls)
        keep = keep[torch.argsort(cls[keep], stable=True)]
        if self.config.max_predictions < keep.shape[0]:
            best = torch.argsort(scores[keep], descending=True, stable=True)
            keep = keep[best[: self.config.max_predictions]]
        return boxes[keep], cls[keep], scores[keep]

    def usable(self, boxes: Tensor, scores: Tensor) -> Tensor:
        """Return which boxes `... x 4` may be detections: not empty, and with a score above the threshold."""
        not_empty = (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        return (scores > self.config.score_threshold) & not_empty
