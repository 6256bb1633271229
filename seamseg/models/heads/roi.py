"""The ROI head: class, box and mask of regions of interest, their samples in training, and its losses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.sections import Roi
from seamseg.maps.panoptic_map import VOID
from seamseg.models.backbones.base import NormFactory
from seamseg.models.folded import FoldedUpsampling
from seamseg.models.heads.rpn import BACKGROUND, box_targets
from seamseg.models.heads.select import nth_true, rank_samples, upload
from seamseg.models.network import Terms
from seamseg.ops.boxes import box_area, crowd_fraction, match_boxes, smooth_l1
from seamseg.ops.norm import NormSequential, is_inplace, is_pointwise, is_tiling, run_layers
from seamseg.ops.roi_sampling import roi_features, roi_sampling
from seamseg.structures import Batch, PackedSequence, TargetInfo


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
        # snapshots of networks with masks have them, too
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
        x = functional.avg_pool2d(x, 2)
        # folded for inference, the branch flattens regions itself, channels last
        x = self.fc(x.flatten(1) if isinstance(self.fc, nn.Sequential) else x)
        return self.roi_cls(x), self.roi_bbx(x).reshape(x.shape[0], self.num_things, 4)

    def masks(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return mask logits `K x things x 28 x 28` of features `K x C x 14 x 14`.

        With `rows` (int64 `P`) only those regions get logits, `P x things x 28 x 28`; the others only contribute to the
        batch statistics.
        """
        *layers, enlarge, norm = self.conv
        x = run_layers(layers, x)
        if rows is not None and norm.training and is_inplace(norm) and _doubles(enlarge):
            # the other regions are needed for the statistics only: their maps are not computed
            x = norm.upsample_rows(x, rows, enlarge)
        else:
            x = run_layers((enlarge, norm), x)
            x = x if rows is None else x[rows]
        logits: Tensor = self.roi_msk(x)
        return logits

    def masks_of(self, x: Tensor, classes: Tensor) -> Tensor:
        """Return mask logits `K x 28 x 28` of features `K x C x 14 x 14`, for the thing class of each region (`K`)."""
        if getattr(self.masks, "__func__", None) is not ROIHead.masks or not is_pointwise(self.roi_msk):
            masks = self.masks(x)
            # not by two indices, a GatherND in ONNX, which some engines do not check
            return masks.gather(1, classes[:, None, None, None].expand(-1, 1, *masks.shape[2:]))[:, 0]
        # without the logits of the other classes
        weight, bias = self.roi_msk.weight.flatten(1)[classes], self.roi_msk.bias
        *layers, enlarge, norm = self.conv
        x = run_layers(layers, x)
        if type(enlarge) is FoldedUpsampling:
            logits = enlarge.project(x, weight)
        else:
            logits = torch.einsum("kchw,kc->khw", run_layers((enlarge, norm), x), weight)
        return logits if bias is None else logits + bias[classes, None, None]

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


def _doubles(layer: nn.Module) -> TypeGuard[nn.ConvTranspose2d]:
    return is_tiling(layer) and layer.stride == (2, 2) and layer.bias is None


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


@dataclass(frozen=True)
class ROIOutputs:
    """The ROI head on the samples of each image, None for an image without any: M in all images, P of them leading.

    cls_logits `M x (things + 1)`, bbx_logits `M x things x 4`, msk_logits `P x things x 28 x 28` of the leading ones,
    None without a mask branch.
    """

    samples: list[ROISample | None]
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
        labels, codes, mask_labels, mask_planes = self._targets(things, masks, config)
        given = [sample.weight for sample in self.samples if sample is not None and sample.weight is not None]
        weights = torch.cat(given) if given else None
        count = labels.shape[0] if weights is None else weights.sum()
        errors = smooth_l1(of_class(self.bbx_logits, labels), codes, config.sigma)
        losses: Terms = {
            "roi_cls_loss": (class_loss(self.cls_logits, labels, weights), count),
            "roi_bbx_loss": (box_loss(errors, labels, weights), count),
        }
        if self.msk_logits is not None:
            losses["roi_msk_loss"] = mask_loss(self.msk_logits, mask_labels, mask_planes)
        return losses

    @torch.no_grad()
    def _targets(
        self, things: Sequence[Things], masks: PackedSequence, config: Roi
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return labels `M` and box codes `M x 4` of all samples, labels `P` and masks of the leading ones."""
        labels, codes, leading, planes = [], [], [], []
        for sample, truth, ids in zip(self.samples, things, masks, strict=True):
            if sample is None:
                continue
            labels.append(labels_of(sample.match, truth.classes))
            codes.append(box_targets(sample.boxes, truth.boxes, sample.match, config.bbx_reg_weights))
            leading.append(labels[-1][: sample.leading])
            if self.msk_logits is not None:
                assert ids is not None
                first = (sample.boxes[: sample.leading], sample.match[: sample.leading], truth.ids, ids)
                height, width = self.msk_logits.shape[-2:]
                planes.append(mask_targets(*first, (height, width), config.void_is_background))
        return torch.cat(labels), torch.cat(codes), torch.cat(leading), torch.cat(planes) if planes else torch.empty(0)


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
    """Return the outputs `M x ...` of the true class from `M x things x ...`; of the first class for background."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return logits[rows, (labels - 1).clamp(min=0)].float()


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
