"""From scored anchors to proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.nms import nms
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
        PackedSequence of boxes `K x 4` by falling score; None for an image without any
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
        chosen = self._suppress(candidates_of_images, training)
        return PackedSequence([boxes if boxes.shape[0] > 0 else None for boxes in chosen])

    def select(self, boxes: Tensor, scores: Tensor, training: bool) -> Tensor:
        """The proposals `K x 4` among clipped boxes `A x 4` with scores `A`, by falling score; K may be 0."""
        return self._suppress([self._candidates(boxes, scores, training)], training)[0]

    def _candidates(self, boxes: Tensor, scores: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """What NMS gets to see of an image: boxes and scores, by falling score."""
        if self.min_size > 0:
            large = ((boxes[:, 2:] - boxes[:, :2]) >= self.min_size).all(dim=1)
            boxes, scores = boxes[large], scores[large]
        best = best_scores(scores, self.num_pre_nms_train if training else self.num_pre_nms_val)
        return boxes[best], scores[best]

    def _suppress(self, candidates: list[tuple[Tensor, Tensor]], training: bool) -> list[Tensor]:
        """NMS of all images at once."""
        if not candidates:
            return []
        boxes, scores = (torch.cat(parts) for parts in zip(*candidates))
        image = torch.cat([torch.full_like(part, i, dtype=torch.long) for i, (_, part) in enumerate(candidates)])
        num_post = self.num_post_nms_train if training else self.num_post_nms_val
        kept = nms(boxes, scores, self.nms_threshold, num_post, image)
        boxes, image = boxes[kept], image[kept]
        return [boxes[image == i] for i in range(len(candidates))]


def best_scores(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` highest of `K` scores by falling score; the lower index first among equals."""
    if 0 < count < scores.shape[0]:
        least = torch.topk(scores, count, sorted=False).values.min()
        candidates = torch.nonzero(scores >= least).flatten()
        return candidates[torch.argsort(scores[candidates], descending=True, stable=True)[:count]]
    return torch.argsort(scores, descending=True, stable=True)
