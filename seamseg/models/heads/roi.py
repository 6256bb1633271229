"""The ROI head: class, box and mask of regions of interest, and its losses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.sections import Roi
from seamseg.models.backbones.base import NormFactory
from seamseg.models.folded import FoldedUpsampling
from seamseg.models.heads.roi_targets import IGNORED_PIXEL, ROISample, Things, box_targets, labels_of, mask_targets
from seamseg.models.network import Terms
from seamseg.ops.boxes import box_area, smooth_l1
from seamseg.ops.norm import NormSequential, is_inplace, is_pointwise, is_tiling, run_layers
from seamseg.ops.roi_sampling import roi_features
from seamseg.structures import PackedSequence


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
