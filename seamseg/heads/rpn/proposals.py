"""From scored anchors to proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.heads.select import nth_true
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.nms import nms_fixed
from seamseg.structures import PackedSequence


@dataclass(frozen=True)
class ProposalGenerator:
    """The best boxes of an image that do not overlap too much (SPEC section 4 "Proposals").

    Parameters
    ----------
    nms_threshold : of two boxes with at least this IoU only the better stays
    num_pre_nms_train, num_post_nms_train : boxes before and after NMS when training
    num_pre_nms_val, num_post_nms_val : the same otherwise
    min_size : boxes with a side below this are dropped, 0 keeps even empty ones
    """

    nms_threshold: float = 0.7
    num_pre_nms_train: int = 12000
    num_post_nms_train: int = 2000
    num_pre_nms_val: int = 6000
    num_post_nms_val: int = 300
    min_size: float = 16.0

    @torch.no_grad()
    def __call__(
        self,
        obj_logits: Tensor,
        bbx_logits: Tensor,
        anchors: Tensor,
        valid_sizes: Sequence[tuple[int, int]],
        training: bool,
    ) -> PackedSequence:
        """Choose the proposals of each image.

        Parameters
        ----------
        obj_logits : `N x A`
        bbx_logits : box codes `N x A x 4`
        anchors : `A x 4`
        valid_sizes : `(height, width)` of each image without its padding
        training : which counts apply

        Returns
        -------
        PackedSequence of boxes `K x 4` by falling score; None for an image without any. On a GPU their numbers are
        waited for, once for all images: see :meth:`padded`
        """
        boxes, counts = self.padded(obj_logits, bbx_logits, anchors, valid_sizes, training)
        return PackedSequence([rows[:count] if count > 0 else None for rows, count in zip(boxes, counts.tolist())])

    @torch.no_grad()
    def padded(
        self,
        obj_logits: Tensor,
        bbx_logits: Tensor,
        anchors: Tensor,
        valid_sizes: Sequence[tuple[int, int]],
        training: bool,
    ) -> tuple[Tensor, Tensor]:
        """The proposals of each image in tensors whose shapes do not depend on their number.

        Parameters
        ----------
        obj_logits, bbx_logits, anchors, valid_sizes, training : as for a call

        Returns
        -------
        boxes : `N x K x 4`, those of an image by falling score, then NaN; K as many as there may be
        counts : int64 `N`, the proposals of each image
        """
        candidates_of_images = []
        for scores, codes, size in zip(obj_logits.float(), bbx_logits.float(), valid_sizes):
            candidates = anchors
            if self.min_size <= 0:
                # nothing is dropped for its size, so only the best need decoding
                best = best_scores(scores, self.num_pre_nms_train if training else self.num_pre_nms_val)
                candidates, codes, scores = anchors[best], codes[best], scores[best]
            boxes = clip_boxes(decode_boxes(candidates, codes), size)
            candidates_of_images.append(self._candidates(boxes, scores, training))
        return self._suppress(candidates_of_images, training)

    def _candidates(self, boxes: Tensor, scores: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        """What NMS gets to see of an image: boxes and scores, by falling score, and which of them are large enough."""
        large = torch.ones_like(scores, dtype=torch.bool)
        if self.min_size > 0:
            large = ((boxes[:, 2:] - boxes[:, :2]) >= self.min_size).all(dim=1)
            scores = torch.where(large, scores, -torch.inf)
        best = best_scores(scores, self.num_pre_nms_train if training else self.num_pre_nms_val)
        return boxes[best], scores[best], large[best]

    def _suppress(self, candidates: list[tuple[Tensor, Tensor, Tensor]], training: bool) -> tuple[Tensor, Tensor]:
        """NMS of all images at once; gives what :meth:`padded` does."""
        images = len(candidates)
        boxes, scores, large = (torch.cat(parts) for parts in zip(*candidates))
        lengths = [part.shape[0] for part, _, _ in candidates]
        image = torch.cat([torch.full_like(part, i, dtype=torch.long) for i, (_, part, _) in enumerate(candidates)])
        # small boxes form a group of their own, of which one stays: they cost nothing and suppress nothing
        image = torch.where(large, image, images)
        nowhere = torch.cat((torch.zeros_like(boxes[:1, :2]), torch.ones_like(boxes[:1, :2])), dim=1)
        num_post = self.num_post_nms_train if training else self.num_post_nms_val
        boxes = torch.where(large[:, None], boxes, nowhere) if self.min_size > 0 else boxes
        kept, _ = nms_fixed(boxes, scores, self.nms_threshold, num_post, image)

        image = torch.where(kept >= 0, image[kept], images)
        order = torch.argsort(image, stable=True)
        everyone = torch.arange(images, device=boxes.device)
        stops = torch.searchsorted(image[order], everyone, right=True)
        starts = torch.cat((stops.new_zeros(1), stops[:-1]))
        most = max(lengths)
        place = torch.arange(min(num_post, most) if num_post > 0 else most, device=boxes.device)
        row = starts[:, None] + place
        is_there = row < stops[:, None]
        chosen = boxes[kept[order[torch.where(is_there, row, 0)]]]
        return torch.where(is_there[:, :, None], chosen, torch.nan), stops - starts


def best_scores(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` highest of `K` scores by falling score; the lower index first among equals."""
    if 0 < count < scores.shape[0]:
        # NaN is the highest of all
        least = torch.topk(scores, count, sorted=False).values.nan_to_num(torch.inf, torch.inf, -torch.inf).min()
        above, equal = ~(scores <= least), scores == least
        chosen = above | (equal & (equal.cumsum(0) <= count - above.sum()))
        candidates = nth_true(chosen, torch.arange(count, device=scores.device))
        return candidates[torch.argsort(scores[candidates], descending=True, stable=True)]
    return torch.argsort(scores, descending=True, stable=True)
