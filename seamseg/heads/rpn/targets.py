"""What each anchor should say: which ground-truth box it stands for, background, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.ops.boxes import crowd_overlap, match_boxes

IGNORED = -2
"""An anchor that takes no part in the losses."""
BACKGROUND = -1
"""An anchor that should say background."""


@dataclass(frozen=True)
class AnchorMatcher:
    """Match anchors with ground-truth boxes and sample some of them (SPEC section 4 "RPN targets").

    Parameters
    ----------
    num_samples : anchors of an image that take part in the losses
    pos_ratio : at most this part of them positive
    pos_threshold, neg_threshold : IoU from which an anchor is positive, below which it is negative
    void_threshold : anchors with at least this part of their area on crowd are left out; 0 lets all take part
    """

    num_samples: int = 256
    pos_ratio: float = 0.5
    pos_threshold: float = 0.7
    neg_threshold: float = 0.3
    void_threshold: float = 0.7

    @torch.no_grad()
    def __call__(
        self, anchors: Tensor, boxes: Tensor | None, valid_size: tuple[int, int], crowd_mask: Tensor | None = None
    ) -> Tensor:
        """Match and sample the anchors of one image. Draws come from torch's global generator.

        Parameters
        ----------
        anchors : `A x 4`
        boxes : ground-truth boxes `G x 4`, None for an image without any
        valid_size : `(height, width)` of the image without its padding
        crowd_mask : bool `H x W`, pixels of crowd; None for an image without crowd

        Returns
        -------
        int64 `A`: index of the ground-truth box, :data:`BACKGROUND` or :data:`IGNORED`
        """
        height, width = valid_size
        usable = (anchors[:, :2] >= 0).all(dim=1) & (anchors[:, 2] <= height) & (anchors[:, 3] <= width)
        index = torch.nonzero(usable).flatten()
        if crowd_mask is not None and self.void_threshold > 0:
            index = index[crowd_overlap(anchors[index], crowd_mask) < self.void_threshold]
        match = anchors.new_full((anchors.shape[0],), IGNORED, dtype=torch.long)
        match[index] = self._sample(self._match(anchors[index], boxes))
        return match

    def _match(self, anchors: Tensor, boxes: Tensor | None) -> Tensor:
        if boxes is None or boxes.shape[0] == 0 or anchors.shape[0] == 0:
            return anchors.new_full((anchors.shape[0],), BACKGROUND, dtype=torch.long)
        highest, nearest, best_iou, best_anchor = match_boxes(anchors, boxes)
        match = torch.full_like(nearest, IGNORED)
        match[highest < self.neg_threshold] = BACKGROUND
        match = torch.where(highest >= self.pos_threshold, nearest, match)

        # a box claims its best anchor even from a box that overlaps it more; of two claims the later box's stands
        claims = torch.where(best_iou > 0, torch.arange(boxes.shape[0], device=boxes.device), IGNORED)
        claimed = torch.full_like(match, IGNORED).scatter_reduce(0, best_anchor, claims, "amax")
        return torch.where(claimed >= 0, claimed, match)

    def _sample(self, match: Tensor) -> Tensor:
        positive = torch.nonzero(match >= 0).flatten()
        negative = torch.nonzero(match == BACKGROUND).flatten()
        num_positive = min(int(self.num_samples * self.pos_ratio), positive.shape[0])
        num_negative = min(self.num_samples - num_positive, negative.shape[0])
        for candidates, count in ((positive, num_positive), (negative, num_negative)):
            if count < candidates.shape[0]:
                order = torch.randperm(candidates.shape[0]).to(candidates.device)
                match[candidates[order[count:]]] = IGNORED
        return match
