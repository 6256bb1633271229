"""The ROI head: class, box and mask of regions of interest, their samples in training, and its losses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.sections import Roi
from seamseg.models.backbones.base import NormFactory
from seamseg.models.heads.rpn import BACKGROUND, box_targets
from seamseg.models.network import Terms
from seamseg.ops.boxes import box_area, crowd_fraction, match_boxes, smooth_l1
from seamseg.ops.nms import nth_true, rank_samples
from seamseg.ops.norm import IN_PLACE, NormSequential, is_plain, is_tiling, run_layers
from seamseg.ops.roi_sampling import roi_features, roi_sampling
from seamseg.structures import PackedSequence, Things, upload


@dataclass(frozen=True)
class ROIExtractor:
    """Features of boxes in one size, from the level for each (docs/contract.md, section 4 "FPN level of a box")."""

    config: Roi

    def level_of(self, boxes: Tensor) -> Tensor:
        """Return the index of the level, int64 `K`, of boxes `K x 4`."""
        side = box_area(boxes).clamp(min=0).sqrt()
        level = torch.floor(self.config.fpn_canonical_level + torch.log2(side / self.config.fpn_canonical_scale + 1e-6))
        first = self.config.fpn_min_level
        return level.clamp(first, first + self.config.fpn_levels - 1).long()

    def __call__(self, levels: Sequence[Tensor], boxes: Tensor, index: Tensor, padded_size: tuple[int, int]) -> Tensor:
        """Sample the features `K x C x roi_size` of boxes `K x 4` on images `index` from all levels of the pyramid."""
        first = self.config.fpn_min_level
        used = list(levels[first : first + self.config.fpn_levels])
        return roi_features(used, boxes, index, self.level_of(boxes) - first, padded_size, self.config.roi_size)


class ROIHead(nn.Module):
    """The head of Mask R-CNN, with or without masks (docs/contract.md, section 3 "ROI head").

    Parameters
    ----------
    config : the section `[roi]`
    in_channels : channels of the features of a region
    num_things : thing classes
    norm : factory of norm + activation layers
    with_masks : False leaves the mask branch out (detection)

    Attributes
    ----------
    unused_layers : beginnings of the names of weights that a snapshot may have and this head does not use
    """

    def __init__(
        self, config: Roi, in_channels: int, num_things: int, norm: NormFactory, with_masks: bool = True
    ) -> None:
        super().__init__()
        self.num_things = num_things
        self.with_masks = with_masks
        self.roi_size = config.roi_size
        fc_channels, conv_channels = config.fc_channels, config.conv_channels
        self.unused_layers = () if with_masks else ("conv.", "roi_msk.")
        cells = (config.roi_size[0] // 2) * (config.roi_size[1] // 2)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, inputs in ((1, cells * in_channels), (2, fc_channels)):
            layers[f"fc{i}"] = nn.Linear(inputs, fc_channels, bias=False)
            layers[f"bn{i}"] = norm(fc_channels)
        self.fc = NormSequential(layers)
        self.roi_cls = nn.Linear(fc_channels, num_things + 1)
        self.roi_bbx = nn.Linear(fc_channels, num_things * 4)

        if with_masks:
            layers = OrderedDict()
            for i, inputs in ((1, in_channels), (2, conv_channels), (3, conv_channels), (4, conv_channels)):
                layers[f"conv{i}"] = nn.Conv2d(inputs, conv_channels, 3, padding=1, bias=False)
                layers[f"bn{i}"] = norm(conv_channels)
            layers["conv_up"] = nn.ConvTranspose2d(conv_channels, conv_channels, 2, stride=2, bias=False)
            layers["bn_up"] = norm(conv_channels)
            self.conv = NormSequential(layers)
            self.roi_msk = nn.Conv2d(conv_channels, num_things, 1)

    def boxes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `K x C x roi_size` to logits `K x (things + 1)` (0: background), codes `K x things x 4`."""
        x = self.fc(functional.avg_pool2d(x, 2).flatten(1))
        return self.roi_cls(x), self.roi_bbx(x).reshape(x.shape[0], self.num_things, 4)

    def masks(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return mask logits `K x things x 2h x 2w` of features `K x C x h x w`.

        With `rows` (int64 `P`) only those regions get logits, `P x things x 2h x 2w`; the others only contribute to the
        batch statistics.
        """
        *layers, enlarge, norm = self.conv
        x = run_layers(layers, x)
        doubles = is_tiling(enlarge) and enlarge.stride == (2, 2) and enlarge.bias is None
        if rows is not None and norm.training and doubles and is_plain(norm, *IN_PLACE):
            # the other regions are needed for the statistics only: their maps are not computed
            x = norm.upsample_rows(x, rows, enlarge)  # type: ignore[arg-type]
        else:
            x = run_layers((enlarge, norm), x)
            x = x if rows is None else x[rows]
        logits: Tensor = self.roi_msk(x)
        return logits

    def forward(
        self, x: Tensor, rows: Tensor | None = None, rows_only: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run all branches: class logits, box codes and (of `rows` only, if given) mask logits or None.

        With `rows_only` the mask branch runs on `rows` alone, see `[roi] mask_positives_only`.
        """
        cls_logits, bbx_logits = self.boxes(x)
        if not self.with_masks:
            return cls_logits, bbx_logits, None
        return cls_logits, bbx_logits, self.masks(x[rows]) if rows_only else self.masks(x, rows)


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
    counts: bool | Tensor


@dataclass(frozen=True)
class ProposalMatcher:
    """Match proposals with ground-truth boxes and sample some of them (docs/contract.md, section 4 "ROI targets").

    With `fixed_samples` there are always `num_samples` rows, sampled on the device: the host does not wait for a count.
    Rows of weight 0 fill up, and are all of an image without ground truth, unless `sample_empty_images`.
    """

    config: Roi
    permutation: Callable[[int], Tensor] = torch.randperm

    @torch.no_grad()
    def sample(self, proposals: Sequence[Tensor | None], things: Sequence[Things]) -> list[ROISample | None]:
        """Match and sample the proposals `K x 4` of each image; the boxes of its things count as proposals too.

        Proposals of NaN are padding. None for an image without samples, with `fixed_samples` only for one without
        things and without proposals.
        """
        images = [self._candidates(*image) for image in zip(proposals, things, strict=True)]
        if self.config.fixed_samples:
            return [None if image is None else self._sample_fixed(image) for image in images]
        numbers = [torch.stack((c.positive.sum(), c.negative.sum())) for c in images if c is not None]
        counts = iter(torch.stack(numbers).tolist() if numbers else ())
        return [None if image is None else self._sample(image, *next(counts)) for image in images]

    def _candidates(self, proposals: Tensor | None, things: Things) -> _Candidates | None:
        has_things = things.boxes.shape[0] > 0 if things.real is None else things.real.any()
        counts = self.config.sample_empty_images or has_things
        boxes = things.boxes if proposals is None else torch.cat((things.boxes, proposals))
        if boxes.shape[0] == 0 or not (self.config.fixed_samples or counts):
            return None
        usable = ~boxes.isnan().any(dim=1)
        if things.real is not None:
            usable = usable & functional.pad(things.real, (0, boxes.shape[0] - things.real.shape[0]), value=True)
        if self.config.void_threshold > 0 and things.crowd is not None:
            # empty boxes have no overlap (NaN) and stay
            usable = usable & ~(crowd_fraction(boxes, things.crowd) >= self.config.void_threshold)
        highest, nearest, _, _ = match_boxes(boxes, things.boxes)
        positive = usable & (highest >= self.config.pos_threshold)
        between = (highest < self.config.neg_threshold_hi) & (highest >= self.config.neg_threshold_lo)
        return _Candidates(boxes, positive, usable & between & ~positive, nearest, counts)

    def _sample(self, image: _Candidates, num_positive: int, num_negative: int) -> ROISample | None:
        orders = [self.permutation(num_positive)[: self.config.most_positive]]
        orders.append(self.permutation(num_negative)[: self.config.num_samples - orders[0].shape[0]])
        drawn = torch.split(upload(torch.cat(orders), image.boxes.device), [order.shape[0] for order in orders])
        positive, negative = nth_true(image.positive, drawn[0]), nth_true(image.negative, drawn[1])
        index = torch.cat([positive, negative])
        if index.shape[0] == 0:
            return None
        match = torch.cat([image.nearest[positive], torch.full_like(negative, BACKGROUND)])
        return ROISample(image.boxes[index], match, None, positive.shape[0])

    def _sample_fixed(self, image: _Candidates) -> ROISample:
        most, number = self.config.most_positive, self.config.num_samples
        positive, order, exists = rank_samples(image.positive, image.negative, most, number)
        row, found = torch.arange(number, device=order.device), exists.sum()
        counts = row < found
        index = order[row % found.clamp(min=1)]
        match = torch.where(counts & positive[index], image.nearest[index], BACKGROUND)
        # without any candidate the row may be NaN: make it an empty box
        return ROISample(image.boxes[index].nan_to_num(0.0), match, (counts & image.counts).float(), most)


def leading_rows(samples: Sequence[ROISample | None], device: torch.device) -> Tensor:
    """Return the rows, int64 `P`, of the leading samples of each image in the concatenated samples of all images."""
    rows, start = [torch.zeros(0, dtype=torch.long, device=device)], 0
    for sample in samples:
        if sample is not None:
            rows.append(torch.arange(start, start + sample.leading, device=device))
            start += sample.match.shape[0]
    return torch.cat(rows)


@dataclass(frozen=True)
class ROIOutputs:
    """The ROI head on the samples of each image, None for an image without any: M in all images, P of them leading.

    rows int64 `P` of the leading ones, cls_logits `M x (things + 1)`, bbx_logits `M x things x 4`, msk_logits `P x
    things x 2h x 2w` or None without a mask branch.
    """

    samples: list[ROISample | None]
    rows: Tensor
    cls_logits: Tensor
    bbx_logits: Tensor
    msk_logits: Tensor | None

    def losses(self, things: Sequence[Things], masks: PackedSequence, config: Roi) -> Terms:
        """Compute `roi_cls_loss`, `roi_bbx_loss` and `roi_msk_loss`, each with its count (docs/contract.md, section 4).

        They are 0, with a count and gradients of 0, if the head ran on zero rows. `masks` are id maps `L x H x W`.
        """
        if all(sample is None for sample in self.samples):
            # sums of no rows: their backward pass runs the collectives of the head on this rank too
            logits = {"roi_cls_loss": self.cls_logits, "roi_bbx_loss": self.bbx_logits, "roi_msk_loss": self.msk_logits}
            return {name: (x.float().sum(), 0) for name, x in logits.items() if x is not None}
        labels, codes, planes = [], [], []
        with torch.no_grad():
            for sample, truth, ids in zip(self.samples, things, masks, strict=True):
                if sample is None:
                    continue
                # class 0 is background
                labels.append(functional.pad(truth.classes + 1, (1, 0))[sample.match + 1])
                codes.append(box_targets(sample.boxes, truth.boxes, sample.match))
                if self.msk_logits is not None:
                    assert ids is not None
                    first = (sample.boxes[: sample.leading], sample.match[: sample.leading], truth.ids, ids)
                    height, width = self.msk_logits.shape[-2:]
                    planes.append(mask_targets(*first, (height, width), config.void_is_background))
            label = torch.cat(labels)
            # Python numbers: the host would wait for the copy of a tensor of them to the device
            weighted = zip(torch.cat(codes).unbind(1), config.bbx_reg_weights, strict=True)
            code = torch.stack([x * weight for x, weight in weighted], dim=1)
        given = [sample.weight for sample in self.samples if sample is not None and sample.weight is not None]
        weights = torch.cat(given) if given else None
        count = label.shape[0] if weights is None else weights.sum()
        errors = smooth_l1(of_class(self.bbx_logits, label), code, config.sigma)
        losses: Terms = {
            "roi_cls_loss": (class_loss(self.cls_logits, label, weights), count),
            "roi_bbx_loss": (box_loss(errors, label, weights), count),
        }
        if self.msk_logits is not None:
            losses["roi_msk_loss"] = mask_loss(self.msk_logits, label[self.rows], torch.cat(planes))
        return losses


def class_loss(cls_logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the weighted mean cross-entropy of logits `M x (things + 1)` and labels `M` (0: background)."""
    if weights is None:
        return functional.cross_entropy(cls_logits.float(), labels)
    losses = functional.cross_entropy(cls_logits.float(), labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def box_loss(errors: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the sum of the smooth L1 errors `M x 4` of positives, whose weight is 1, over all samples."""
    loss = torch.where((labels > 0)[:, None], errors, 0.0).sum()
    return loss / (labels.shape[0] if weights is None else weights.sum().clamp(min=1))


def of_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the outputs `M x ...` of the true class from `M x things x ...`; of the last class for background."""
    return logits[torch.arange(labels.shape[0], device=labels.device), labels - 1].float()


def mask_loss(msk_logits: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean binary cross-entropy of the mask of the true class over pixels not ignored, and their number.

    From logits `P x things x h x w`, labels `P` and `P x h x w` of :func:`mask_targets`.
    """
    counts = (targets != IGNORED_PIXEL).float()
    logits = of_class(msk_logits, labels)
    loss = functional.binary_cross_entropy_with_logits(logits, targets.clamp(min=0), weight=counts, reduction="sum")
    count = counts.sum()
    return loss / count.clamp(min=1), count


IGNORED_PIXEL = -1
"""A pixel of a mask target that is excluded from the loss."""


def mask_targets(
    samples: Tensor, match: Tensor, ids: Tensor, masks: Tensor, size: tuple[int, int], void_is_background: bool
) -> Tensor:
    """Sample the id map `L x H x W` inside samples `M x 4`: float32 `M x size` of 1, 0 or :data:`IGNORED_PIXEL`.

    `ids` (int64 `G`) are the instances of the ground-truth boxes. All pixels of a sample without a match are ignored,
    and void ones unless `void_is_background`.
    """
    index = torch.zeros(samples.shape[0], dtype=torch.long, device=samples.device)
    sampled = roi_sampling(masks[None], samples, index, size, interpolation="nearest")
    target = (sampled == functional.pad(ids, (1, 0), value=-1)[match + 1][:, None, None, None]).any(dim=1).float()
    ignored = (match == BACKGROUND)[:, None, None].expand_as(target)
    if not void_is_background:
        ignored = ignored | (sampled == 0).all(dim=1)
    return torch.where(ignored, IGNORED_PIXEL, target)
