"""What each anchor should say: which ground-truth box it stands for, background, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.heads.select import draw, nth_true, upload
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
    fixed : draw on the device, from its generator, so that nobody waits for a count. The default draws on the host,
        from torch's global generator, as the original does
    """

    num_samples: int = 256
    pos_ratio: float = 0.5
    pos_threshold: float = 0.7
    neg_threshold: float = 0.3
    void_threshold: float = 0.7
    fixed: bool = False

    @torch.no_grad()
    def batch(
        self,
        anchors: Tensor,
        boxes: Sequence[Tensor | None],
        valid_sizes: Sequence[tuple[int, int]],
        crowd_masks: Sequence[Tensor | None],
    ) -> Tensor:
        """Match and sample the anchors of each image; on a GPU the host waits once, not at all if `fixed`.

        Parameters
        ----------
        anchors : `A x 4`
        boxes : ground-truth boxes `G x 4`, None for an image without any
        valid_sizes : `(height, width)` of each image without its padding
        crowd_masks : bool `H x W`, pixels of crowd; None for an image without crowd

        Returns
        -------
        int64 `N x A`: index of the ground-truth box, :data:`BACKGROUND` or :data:`IGNORED`
        """
        matches = torch.stack(
            [self._match(anchors, *image) for image in zip(boxes, valid_sizes, crowd_masks, strict=True)]
        )
        return self._sample_fixed(matches) if self.fixed else self._sample(matches)

    def _match(
        self, anchors: Tensor, boxes: Tensor | None, valid_size: tuple[int, int], crowd_mask: Tensor | None
    ) -> Tensor:
        height, width = valid_size
        usable = (anchors[:, :2] >= 0).all(dim=1) & (anchors[:, 2] <= height) & (anchors[:, 3] <= width)
        # an anchor that is not in use becomes an empty box, which overlaps nothing
        anchors = torch.where(usable[:, None], anchors, 0.0)
        if crowd_mask is not None and self.void_threshold > 0:
            usable = usable & (crowd_overlap(anchors, crowd_mask) < self.void_threshold)
            anchors = torch.where(usable[:, None], anchors, 0.0)
        match = torch.where(usable, BACKGROUND, IGNORED)
        if boxes is None or boxes.shape[0] == 0 or anchors.shape[0] == 0:
            return match
        highest, nearest, best_iou, best_anchor = match_boxes(anchors, boxes)
        match = torch.where(highest < self.neg_threshold, match, IGNORED)
        match = torch.where(highest >= self.pos_threshold, nearest, match)

        # a box claims its best anchor even from a box that overlaps it more; of two claims the later box's stands
        claims = torch.where(best_iou > 0, torch.arange(boxes.shape[0], device=boxes.device), IGNORED)
        claimed = torch.full_like(match, IGNORED).scatter_reduce(0, best_anchor, claims, "amax")
        return torch.where(usable, torch.where(claimed >= 0, claimed, match), IGNORED)

    def _sample(self, matches: Tensor) -> Tensor:
        positive, negative = matches >= 0, matches == BACKGROUND
        counts = torch.stack((positive.sum(1), negative.sum(1)), dim=1).tolist()
        # one draw for each kind of each image that has too many
        draws: list[tuple[int, Tensor, Tensor]] = []
        for i, (num_positive, num_negative) in enumerate(counts):
            wanted = min(int(self.num_samples * self.pos_ratio), num_positive)
            for mask, count, limit in (
                (positive[i], num_positive, wanted),
                (negative[i], num_negative, self.num_samples - wanted),
            ):
                if limit < count:
                    draws.append((i, mask, torch.randperm(count)[:limit]))
        if not draws:
            return matches
        ranks = upload(torch.cat([order for _, _, order in draws]), matches.device)
        rows = list(matches)
        for (i, mask, _), part in zip(draws, ranks.split([order.shape[0] for _, _, order in draws])):
            kept = torch.zeros_like(mask).index_fill(0, nth_true(mask, part), True)
            rows[i] = torch.where(mask & ~kept, IGNORED, rows[i])
        return torch.stack(rows)

    def _sample_fixed(self, matches: Tensor) -> Tensor:
        positive = draw(matches >= 0, int(self.num_samples * self.pos_ratio))
        # what the positives leave of the samples differs from image to image: rank the negatives instead of counting
        keys = torch.where(matches == BACKGROUND, torch.rand(matches.shape, device=matches.device), -1.0)
        best = torch.where(positive, 2.0, keys).topk(min(self.num_samples, matches.shape[1]), sorted=False)
        kept = torch.zeros_like(positive).scatter(1, best.indices, best.values >= 0)
        return torch.where(kept, matches, IGNORED)
