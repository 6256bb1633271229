"""Which proposals the ROI head learns from, and what it should say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.ops.boxes import crowd_overlap, encode_boxes, match_boxes
from seamseg.ops.roi_sampling import roi_sampling

BACKGROUND = -1
"""A proposal that should say background."""
IGNORED_PIXEL = -1
"""A pixel of a mask target that takes no part in the loss."""


def torch_permutation(n: int) -> Tensor:
    """A random order of `n` things, from torch's global generator."""
    return torch.randperm(n)


@dataclass(frozen=True)
class ProposalMatcher:
    """Match proposals with ground-truth boxes and sample some of them (SPEC section 4 "ROI targets").

    Parameters
    ----------
    num_samples : proposals of an image that take part in the losses
    pos_ratio : at most this part of them positive
    pos_threshold : IoU from which a proposal is positive
    neg_threshold_hi, neg_threshold_lo : a negative proposal's IoU is below the one and at least the other
    void_threshold : proposals with at least this part of their area on crowd are left out; 0 lets all take part
    sample_empty_images : take negatives from images without ground truth too (the original takes none)
    permutation : draws a random order of n things; int64 `n`
    """

    num_samples: int = 128
    pos_ratio: float = 0.25
    pos_threshold: float = 0.5
    neg_threshold_hi: float = 0.5
    neg_threshold_lo: float = 0.0
    void_threshold: float = 0.7
    sample_empty_images: bool = False
    permutation: Callable[[int], Tensor] = torch_permutation

    @torch.no_grad()
    def __call__(
        self, proposals: Tensor | None, boxes: Tensor | None, crowd_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Match and sample the proposals of one image; the ground-truth boxes count as proposals too.

        Parameters
        ----------
        proposals : `K x 4` or None
        boxes : ground-truth boxes `G x 4` or None
        crowd_mask : bool `H x W`, pixels of crowd; None for an image without crowd

        Returns
        -------
        samples : `M x 4`, positives first; None if there are none
        match : int64 `M`, index of the ground-truth box or :data:`BACKGROUND`; None if there are none
        """
        if boxes is not None and boxes.shape[0] == 0:
            boxes = None
        if boxes is None and not self.sample_empty_images:
            return None, None
        parts = [b for b in (boxes, proposals) if b is not None]
        if not parts:
            return None, None
        candidates = torch.cat(parts)
        if crowd_mask is not None and self.void_threshold > 0:
            # empty boxes have no overlap (NaN) and stay
            candidates = candidates[~(crowd_overlap(candidates, crowd_mask) >= self.void_threshold)]
        if candidates.shape[0] == 0:
            return None, None

        if boxes is None:
            highest = candidates.new_zeros(candidates.shape[0])
            nearest = torch.zeros_like(highest, dtype=torch.long)
        else:
            highest, nearest, _, _ = match_boxes(candidates, boxes)
        is_positive = highest >= self.pos_threshold
        is_negative = (highest < self.neg_threshold_hi) & (highest >= self.neg_threshold_lo) & ~is_positive
        positive = self._draw(is_positive, int(self.num_samples * self.pos_ratio))
        negative = self._draw(is_negative, self.num_samples - positive.shape[0])
        index = torch.cat([positive, negative])
        if index.shape[0] == 0:
            return None, None
        return candidates[index], torch.cat([nearest[positive], torch.full_like(negative, BACKGROUND)])

    def _draw(self, chosen: Tensor, count: int) -> Tensor:
        index = torch.nonzero(chosen).flatten()
        order = self.permutation(index.shape[0])[:count]
        return index[order.to(index.device)]


def box_targets(samples: Tensor, boxes: Tensor, match: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Box codes that the positive samples should say.

    Parameters
    ----------
    samples : `M x 4`
    boxes : ground-truth boxes `G x 4`
    match : int64 `M` from :class:`ProposalMatcher`
    weights : factors of the four numbers of a code

    Returns
    -------
    `P x 4` for the P samples with a match
    """
    positive = match >= 0
    return encode_boxes(samples[positive], boxes[match[positive]]) * boxes.new_tensor(weights)


def mask_targets(
    samples: Tensor, match: Tensor, ids: Tensor, masks: Tensor, size: tuple[int, int], void_is_background: bool
) -> Tensor:
    """Masks that the positive samples should say, by nearest sampling of the id map inside the sample's box.

    Parameters
    ----------
    samples : `M x 4`
    match : int64 `M` from :class:`ProposalMatcher`
    ids : int64 `G`, the instance id of each ground-truth box
    masks : id map `L x H x W` of L layers, 0 void
    size : `(height, width)` of a target
    void_is_background : void pixels are background rather than ignored

    Returns
    -------
    float32 `P x size` for the P samples with a match: 1, 0, or :data:`IGNORED_PIXEL`
    """
    positive = match >= 0
    boxes = samples[positive]
    index = torch.zeros(boxes.shape[0], dtype=torch.long, device=boxes.device)
    sampled, _ = roi_sampling(masks[None], boxes, index, size, interpolation="nearest")
    target = (sampled == ids[match[positive]][:, None, None, None]).any(dim=1).float()
    if not void_is_background:
        target[(sampled == 0).all(dim=1)] = IGNORED_PIXEL
    return target
