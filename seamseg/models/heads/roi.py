"""The ROI head: class, box and mask of regions of interest, and its losses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.models.backbones.base import NormFactory
from seamseg.models.heads.points import PointHead
from seamseg.models.heads.roi_targets import IGNORED_PIXEL
from seamseg.ops.boxes import box_area, smooth_l1
from seamseg.ops.nms import nms
from seamseg.ops.norm import InPlaceABN, NormSequential, run_layers
from seamseg.ops.roi_sampling import roi_features


@dataclass(frozen=True)
class ROIExtractor:
    """Fixed-size features of boxes, from the level for their size (docs/contract.md, section 4 "FPN level of a box").

    Parameters
    ----------
    roi_size : `(height, width)` of the features of a box
    min_level, num_levels : the levels in use
    canonical_scale, canonical_level : a box of this side (pixels) belongs to this level
    """

    roi_size: tuple[int, int] = (14, 14)
    min_level: int = 0
    num_levels: int = 4
    canonical_scale: float = 224.0
    canonical_level: int = 2

    def level_of(self, boxes: Tensor) -> Tensor:
        """Return the index of the level, int64 `K`, of boxes `K x 4`."""
        side = box_area(boxes).clamp(min=0).sqrt()
        level = torch.floor(self.canonical_level + torch.log2(side / self.canonical_scale + 1e-6))
        return level.clamp(self.min_level, self.min_level + self.num_levels - 1).long()

    def __call__(self, levels: Sequence[Tensor], boxes: Tensor, index: Tensor, padded_size: tuple[int, int]) -> Tensor:
        """Sample the features of boxes.

        Parameters
        ----------
        levels : all levels of the pyramid, `N x C x h x w`, finest first
        boxes : `K x 4`
        index : int64 `K`, the image of each box
        padded_size : `(height, width)` of the padded images the levels come from

        Returns
        -------
        `K x C x roi_size`
        """
        used = list(levels[self.min_level : self.min_level + self.num_levels])
        level = self.level_of(boxes) - self.min_level
        return roi_features(used, boxes, index, level, padded_size, self.roi_size)


class ROIHead(nn.Module):
    """Class, box and (optionally) mask of regions (docs/contract.md, section 3 "ROI head").

    Parameters
    ----------
    in_channels : channels of the features of a region
    num_things : thing classes
    norm : factory of norm + activation layers
    roi_size : `(height, width)` of the features of a region
    fc_channels, conv_channels : widths of the fully connected layers and of the convolutions
    with_masks : False leaves the mask branch out (detection)
    box_convs : 3x3 convolutions of the box branch, before one fully connected layer (4: 4conv1fc, Wu and He 2018); 0
        for two fully connected layers
    """

    def __init__(
        self,
        in_channels: int,
        num_things: int,
        norm: NormFactory,
        roi_size: tuple[int, int] = (14, 14),
        fc_channels: int = 1024,
        conv_channels: int = 256,
        with_masks: bool = True,
        box_convs: int = 0,
    ) -> None:
        super().__init__()
        self.num_things = num_things
        self.with_masks = with_masks
        # snapshots of networks with masks have them, too
        self.unused_layers = () if with_masks else ("conv.", "roi_msk.", "roi_pts.")
        self.roi_pts: PointHead | None = None
        self.roi_size = roi_size
        cells = (roi_size[0] // 2) * (roi_size[1] // 2)
        self.box_conv = None
        if box_convs:
            self.box_conv = NormSequential(_convolutions(in_channels, conv_channels, norm, box_convs))
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i in (1,) if box_convs else (1, 2):
            inputs = fc_channels if i > 1 else cells * (conv_channels if box_convs else in_channels)
            layers[f"fc{i}"] = nn.Linear(inputs, fc_channels, bias=False)
            layers[f"bn{i}"] = norm(fc_channels)
        self.fc = NormSequential(layers)
        self.roi_cls = nn.Linear(fc_channels, num_things + 1)
        self.roi_bbx = nn.Linear(fc_channels, num_things * 4)

        if with_masks:
            layers = _convolutions(in_channels, conv_channels, norm, 4)
            layers["conv_up"] = nn.ConvTranspose2d(conv_channels, conv_channels, 2, stride=2, bias=False)
            layers["bn_up"] = norm(conv_channels)
            self.conv = NormSequential(layers)
            self.roi_msk = nn.Conv2d(conv_channels, num_things, 1)

    def boxes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `K x C x roi_size` to logits `K x (things + 1)` (0: background), codes `K x things x 4`."""
        x = functional.avg_pool2d(x, 2)
        x = x if self.box_conv is None else self.box_conv(x)
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
        if rows is not None and norm.training and isinstance(norm, InPlaceABN):
            assert isinstance(enlarge, nn.ConvTranspose2d)
            # the other regions are needed for the statistics only: their maps are not computed
            x = norm.upsample_rows(x, rows, enlarge)
        else:
            x = run_layers((enlarge, norm), x)
            x = x if rows is None else x[rows]
        logits: Tensor = self.roi_msk(x)
        return logits

    def masks_of(self, x: Tensor, classes: Tensor) -> Tensor:
        """Return mask logits `K x 28 x 28` of features `K x C x 14 x 14`, for the thing class of each region (`K`)."""
        # without the logits of the other classes
        weight, bias = self.roi_msk.weight.flatten(1)[classes], self.roi_msk.bias
        *layers, enlarge, norm = self.conv
        x = run_layers(layers, x)
        if isinstance(enlarge, nn.ConvTranspose2d):
            logits = torch.einsum("kchw,kc->khw", run_layers((enlarge, norm), x), weight)
        else:
            # folded for inference
            logits = enlarge.project(x, weight)  # type: ignore[operator]
        return logits if bias is None else logits + bias[classes, None, None]

    def forward(self, x: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run all branches: class logits, box codes and (of `rows` only, if given) mask logits or None."""
        cls_logits, bbx_logits = self.boxes(x)
        return cls_logits, bbx_logits, self.masks(x, rows) if self.with_masks else None


def _convolutions(inputs: int, channels: int, norm: NormFactory, count: int) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, count + 1):
        layers[f"conv{i}"] = nn.Conv2d(inputs if i == 1 else channels, channels, 3, padding=1, bias=False)
        layers[f"bn{i}"] = norm(channels)
    return layers


@dataclass(frozen=True)
class DetectionSelector:
    """Selection of detections among scored boxes (docs/contract.md, section 4 "Detections").

    Parameters
    ----------
    nms_threshold : of two boxes of a class with at least this IoU only the one of higher score is kept
    score_threshold : scores must be above
    max_predictions : at most this many of an image, the best of all classes
    """

    nms_threshold: float = 0.3
    score_threshold: float = 0.05
    max_predictions: int = 100

    @torch.no_grad()
    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select the detections of one image.

        Parameters
        ----------
        boxes : `K x things x 4`, one box a proposal and class, clipped to the image
        scores : `K x (things + 1)`, class 0 background

        Returns
        -------
        boxes : `D x 4`
        classes : int64 `D`, 0 = first thing
        scores : `D`

        Ordered by class, then by decreasing score; by decreasing score alone when some had to be left out.
        """
        not_empty = (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        cls, row = torch.nonzero(((scores[:, 1:] > self.score_threshold) & not_empty).t(), as_tuple=True)
        boxes, scores = boxes[row, cls], scores[row, cls + 1]

        keep = nms(boxes, scores, self.nms_threshold, groups=cls)
        keep = keep[torch.argsort(cls[keep], stable=True)]
        if 0 < self.max_predictions < keep.shape[0]:
            best = torch.argsort(scores[keep], descending=True, stable=True)
            keep = keep[best[: self.max_predictions]]
        return boxes[keep], cls[keep], scores[keep]


def class_loss(cls_logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the weighted mean cross-entropy of logits `M x (things + 1)` and labels `M` (0: background)."""
    if weights is None:
        return functional.cross_entropy(cls_logits.float(), labels)
    losses = functional.cross_entropy(cls_logits.float(), labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def box_loss(bbx_logits: Tensor, labels: Tensor, codes: Tensor, sigma: float, weights: Tensor | None = None) -> Tensor:
    """Compute the smooth L1 loss of the code of the true class, summed over the positives, per sample.

    Parameters
    ----------
    bbx_logits : `M x things x 4`
    labels : int64 `M`, 0 = background
    codes : `M x 4`; those of the background are ignored
    sigma : of the smooth L1 loss
    weights : `M`, the number of samples is their sum; None for 1 each. Positives have weight 1
    """
    predicted = codes_of_class(bbx_logits, labels)
    loss = torch.where((labels > 0)[:, None], smooth_l1(predicted, codes, sigma), 0.0).sum()
    return loss / (labels.shape[0] if weights is None else weights.sum().clamp(min=1))


def codes_of_class(bbx_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the codes `M x 4` of the true class from `M x things x 4`; those of the first class for background."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return bbx_logits[rows, (labels - 1).clamp(min=0)].float()


def mask_loss(msk_logits: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean binary cross-entropy of the mask of the true class over pixels not ignored, and their number.

    Parameters
    ----------
    msk_logits : `P x things x h x w`
    labels : int64 `P`; of background (0) all pixels are ignored
    targets : `P x h x w` from :func:`seamseg.models.heads.roi_targets.mask_targets`
    """
    logits = msk_logits[torch.arange(labels.shape[0], device=labels.device), (labels - 1).clamp(min=0)].float()
    counts = (targets != IGNORED_PIXEL).float()
    loss = functional.binary_cross_entropy_with_logits(logits, targets.clamp(min=0), weight=counts, reduction="sum")
    count = counts.sum()
    return loss / count.clamp(min=1), count
