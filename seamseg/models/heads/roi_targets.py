"""The ground truth of things, the sampling of proposals for the ROI head, and its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seamseg.config.sections import Roi
from seamseg.maps.panoptic_map import VOID
from seamseg.models.heads.select import nth_true, rank_samples, upload
from seamseg.ops.boxes import crowd_fraction, encode_boxes, match_boxes
from seamseg.ops.roi_sampling import roi_sampling
from seamseg.structures import Batch, TargetInfo

BACKGROUND = -1
"""Match of an anchor or a proposal that is background."""
IGNORED_PIXEL = -1
"""A pixel of a mask target that is excluded from the loss."""


class ROISample(NamedTuple):
    """The sampled proposals of one image.

    boxes : `M x 4`, positives first
    match : int64 `M`, index of the ground-truth box or :data:`BACKGROUND`
    weight : float32 `M`, 0 for a row that is excluded from the losses; None if all are included
    leading : number of first rows that contain all positives
    """

    boxes: Tensor
    match: Tensor
    weight: Tensor | None
    leading: int


class _Candidates(NamedTuple):
    """The boxes `C x 4` of one image to sample from, the nearest ground truth of each, and whether they have losses."""

    boxes: Tensor
    positive: Tensor
    negative: Tensor
    nearest: Tensor
    counts: bool


@dataclass(frozen=True)
class ProposalMatcher:
    """Match proposals with ground-truth boxes and sample some of them (docs/contract.md, section 4 "ROI targets").

    With `fixed_samples` there are always `num_samples` rows, sampled on the device, so that the host does not wait for
    a count. Where there are too few candidates, rows of weight 0 repeat them; all rows of an image without ground truth
    have weight 0, unless `sample_empty_images`.
    """

    config: Roi
    permutation: Callable[[int], Tensor] = torch.randperm

    @torch.no_grad()
    def batch(
        self, proposals: Sequence[Tensor | None], boxes: Sequence[Tensor | None], crowds: Sequence[Tensor | None]
    ) -> list[ROISample | None]:
        """Match and sample the proposals `K x 4` of each image; its ground-truth boxes `G x 4` count as proposals too.

        Proposals of NaN are padding; `crowds` as for :func:`seamseg.ops.boxes.crowd_fraction`. None for an image
        without samples, with `fixed_samples` only for one without boxes and without proposals.
        """
        images = [self._candidates(*image) for image in zip(proposals, boxes, crowds, strict=True)]
        if self.config.fixed_samples:
            return [None if image is None else self._sample_fixed(image) for image in images]
        return self._sample(images)

    def _candidates(self, proposals: Tensor | None, boxes: Tensor | None, crowd: Tensor | None) -> _Candidates | None:
        if boxes is not None and boxes.shape[0] == 0:
            boxes = None
        counts = boxes is not None or self.config.sample_empty_images
        parts = [b for b in (boxes, proposals) if b is not None]
        if not parts or not (counts or self.config.fixed_samples):
            return None
        candidates = torch.cat(parts)
        usable = ~candidates.isnan().any(dim=1)
        if self.config.void_threshold > 0 and crowd is not None:
            # empty boxes have no overlap (NaN) and stay
            usable = usable & ~(crowd_fraction(candidates, crowd) >= self.config.void_threshold)
        if boxes is None:
            highest = candidates.new_zeros(candidates.shape[0])
            nearest = torch.zeros_like(highest, dtype=torch.long)
        else:
            highest, nearest, _, _ = match_boxes(candidates, boxes)
        positive = usable & (highest >= self.config.pos_threshold)
        negative = (
            usable & (highest < self.config.neg_threshold_hi) & (highest >= self.config.neg_threshold_lo) & ~positive
        )
        return _Candidates(candidates, positive, negative, nearest, counts)

    def _sample(self, images: list[_Candidates | None]) -> list[ROISample | None]:
        present = [image for image in images if image is not None]
        if not present:
            return [None] * len(images)
        counts = torch.stack([torch.stack((c.positive.sum(), c.negative.sum())) for c in present]).tolist()
        orders: list[Tensor] = []
        for num_positive, num_negative in counts:
            orders.append(self.permutation(num_positive)[: self._most_positive])
            orders.append(self.permutation(num_negative)[: self.config.num_samples - orders[-1].shape[0]])
        ranks = iter(
            torch.split(upload(torch.cat(orders), present[0].boxes.device), [order.shape[0] for order in orders])
        )

        samples: list[ROISample | None] = []
        for image in images:
            if image is None:
                samples.append(None)
                continue
            positive, negative = nth_true(image.positive, next(ranks)), nth_true(image.negative, next(ranks))
            index = torch.cat([positive, negative])
            match = torch.cat([image.nearest[positive], torch.full_like(negative, BACKGROUND)])
            sample = ROISample(image.boxes[index], match, None, positive.shape[0])
            samples.append(sample if index.shape[0] > 0 else None)
        return samples

    def _sample_fixed(self, image: _Candidates) -> ROISample:
        device = image.boxes.device
        most, number = self._most_positive, self.config.num_samples
        positive, order, exists = rank_samples(image.positive, image.negative, most, number)
        found = exists.sum()
        row = torch.arange(self.config.num_samples, device=device)
        counts = row < found
        index = order[row % found.clamp(min=1)]
        match = torch.where(counts & positive[index], image.nearest[index], BACKGROUND)
        # without any candidate the row may be NaN: make it an empty box
        boxes = image.boxes[index].nan_to_num(0.0)
        weight = counts.float() if image.counts else torch.zeros(self.config.num_samples, device=device)
        return ROISample(boxes, match, weight, self._most_positive)

    @property
    def _most_positive(self) -> int:
        return int(self.config.num_samples * self.config.pos_ratio)


def leading_rows(samples: Sequence[ROISample | None], device: torch.device) -> Tensor:
    """Return the rows, int64 `P`, of the leading samples of each image in the concatenated samples of all images."""
    rows, start = [torch.zeros(0, dtype=torch.long, device=device)], 0
    for sample in samples:
        if sample is not None:
            rows.append(torch.arange(start, start + sample.leading, device=device))
            start += sample.match.shape[0]
    return torch.cat(rows)


def labels_of(match: Tensor, classes: Tensor) -> Tensor:
    """Return the labels, int64 `M`, of samples by their match `M` and the classes `G` of the boxes; 0 = background."""
    if classes.shape[0] == 0:
        return torch.zeros_like(match)
    return torch.where(match == BACKGROUND, 0, classes[match.clamp(min=0)] + 1)


def box_targets(
    samples: Tensor, boxes: Tensor | None, match: Tensor, weights: tuple[float, ...] | None = None
) -> Tensor:
    """Return the box codes `M x 4` of samples, proposals or anchors; arbitrary for one without a match.

    `match` (int64 `M`) are the indices of the ground-truth boxes, `weights` the factors of the four numbers of a code.
    """
    if boxes is None or boxes.shape[0] == 0:
        return torch.zeros_like(samples)
    codes = encode_boxes(samples, boxes[match.clamp(min=0)])
    if weights is None:
        return codes
    # Python numbers: the host would wait for the copy of a tensor of them to the device
    return torch.stack([code * weight for code, weight in zip(codes.unbind(1), weights, strict=True)], dim=1)


def mask_targets(
    samples: Tensor, match: Tensor, ids: Tensor, masks: Tensor, size: tuple[int, int], void_is_background: bool
) -> Tensor:
    """Sample the id map `L x H x W` inside of samples `M x 4`: float32 `M x size` of 1, 0 or :data:`IGNORED_PIXEL`.

    `ids` (int64 `G`) are the instances of the ground-truth boxes. All pixels of a sample without a match are ignored,
    and void ones unless `void_is_background`.
    """
    if ids.shape[0] == 0:
        return samples.new_full((samples.shape[0], *size), IGNORED_PIXEL, dtype=torch.float32)
    index = torch.zeros(samples.shape[0], dtype=torch.long, device=samples.device)
    sampled, _ = roi_sampling(masks[None], samples, index, size, interpolation="nearest")
    target = (sampled == ids[match.clamp(min=0)][:, None, None, None]).any(dim=1).float()
    ignored = (match == BACKGROUND)[:, None, None].expand_as(target)
    if not void_is_background:
        ignored = ignored | (sampled == 0).all(dim=1)
    return torch.where(ignored, IGNORED_PIXEL, target)


@dataclass(frozen=True)
class Things:
    """The things of one image that the network is trained on.

    boxes `G x 4`, classes int64 `G` (0 = first thing), ids int64 `G`. Crowds, and ids that do not occur in the mask,
    are left out. `crowd` is a bool `H x W`, True on pixels of crowds, or for detection the boxes `C x 4` of the crowds
    of things; None if there is no crowd.
    """

    boxes: Tensor
    classes: Tensor
    ids: Tensor
    crowd: Tensor | None

    @staticmethod
    def of(batch: Batch, num_stuff: int, crowd_boxes: bool = False) -> list[Things]:
        """Return the things of each image of a batch, whose class is at least `num_stuff`.

        With `crowd_boxes` crowds are boxes, and the batch needs no masks. Without `target_info` the host waits.
        """
        target_info = batch.with_target_info().target_info
        assert target_info is not None
        chosen = [_things(info, num_stuff, crowd=False) for info in target_info]
        device = batch.boxes.device
        assert device is not None
        # ids and classes of all images in one copy
        ids_of_all = [i for ids in chosen for i in ids]
        classes_of_all = [info.categories[i] for info, ids in zip(target_info, chosen) for i in ids]
        numbers = upload(torch.tensor([ids_of_all, classes_of_all], dtype=torch.long), device)
        parts = torch.split(numbers, [len(ids) for ids in chosen], dim=1)
        things = []
        images = zip(batch.masks, batch.iscrowd, batch.boxes, target_info, parts)
        for masks, iscrowd, boxes, info, (ids, classes) in images:
            assert iscrowd is not None
            assert boxes is not None
            crowd = None
            if crowd_boxes and (crowds := _things(info, num_stuff, crowd=True)):
                crowd = boxes[upload(torch.tensor(crowds), device)]
            elif not crowd_boxes and any(info.iscrowd):
                assert masks is not None
                crowd = iscrowd.bool()[masks].any(dim=0)
            things.append(Things(boxes[ids], classes - num_stuff, ids, crowd))
        return things


def _things(info: TargetInfo, num_stuff: int, crowd: bool) -> list[int]:
    """Return the ids of things that have a box and are a crowd, or are not."""
    return [
        i
        for i, (category, is_crowd, has_box) in enumerate(zip(*info, strict=True))
        if category >= num_stuff and category != VOID and is_crowd == crowd and has_box
    ]
