"""The settings of a panoptic network, from a configuration, and its anchors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from seamseg.config import Config
from seamseg.config.sections import Rpn
from seamseg.models.heads.roi import ProposalMatcher, ROIExtractor
from seamseg.models.heads.rpn import AnchorMatcher, ProposalGenerator
from seamseg.models.heads.semantic import SemanticLoss
from seamseg.models.network import BatchOptions
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.structures import upload


@dataclass(frozen=True)
class AnchorGenerator:
    """All anchors of levels of the pyramid with these strides, in pixels (docs/contract.md, section 4 "Anchors")."""

    config: Rpn
    level_strides: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance of the anchors of each level in pixels."""
        return tuple(stride * self.config.stride for stride in self.level_strides)

    def cell_anchors(self, stride: int) -> Tensor:
        """Compute the anchors of the first cell of a level, float64 `ratios x 4`."""
        rows = []
        for ratio in self.config.anchor_ratios:
            height = stride * self.config.anchor_scale * math.sqrt(ratio)
            width = stride * self.config.anchor_scale * math.sqrt(1 / ratio)
            centre = stride / 2
            rows.append([centre - height / 2, centre - width / 2, centre + height / 2, centre + width / 2])
        return torch.tensor(rows, dtype=torch.float64)

    @lru_cache(maxsize=16)  # noqa: B019 (generators are few, and equal ones share their anchors)
    def __call__(self, shapes: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
        """Return the anchors `A x 4` of levels of the given `(height, width)`, by level, row, column and ratio."""
        # cached for later calls, which may be outside of inference mode
        with torch.inference_mode(False):
            # rounded to float32 before they are shifted
            cells = [upload(self.cell_anchors(stride).float(), device) for stride in self.strides]
            levels = zip(self.strides, shapes, cells, strict=True)
            return torch.cat([self.level_anchors(*level) for level in levels])

    def level_anchors(self, stride: int, shape: tuple[int, int], cell: Tensor) -> Tensor:
        """Return the anchors of a level, `A x 4`, by those of its first cell, `ratios x 4`; sizes may be symbolic."""
        y = torch.arange(shape[0], dtype=torch.float32, device=cell.device) * stride
        x = torch.arange(shape[1], dtype=torch.float32, device=cell.device) * stride
        shift = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).repeat(1, 1, 2)
        return (shift[:, :, None, :] + cell).reshape(-1, 4)


class DenseOutputs(NamedTuple):
    """Outputs of :meth:`seamseg.models.panoptic.PanopticNet.dense` for a padded batch.

    levels `N x C x h x w` from fine to coarse, obj_logits `N x A`, bbx_logits `N x A x 4`, shapes: `(height, width)` of
    the cells of each level that has anchors, semantic_logits `N x classes x h x w` or None without a semantic head.
    """

    levels: list[Tensor]
    obj_logits: Tensor
    bbx_logits: Tensor
    shapes: list[tuple[int, int]]
    semantic_logits: Tensor | None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(BatchOptions):
    """Settings of a :class:`seamseg.models.panoptic.PanopticNet`: anchors, samplers, thresholds.

    Parameters
    ----------
    num_stuff : stuff classes, which come before the things
    anchors : anchors, and the levels of the pyramid they live on
    proposals : makes proposals from the outputs of the RPN head
    anchor_matcher, matcher : sample anchors and proposals for training
    semantic_loss : the loss of the semantic head
    rois : extracts the features of regions
    selector : selects detections among the scored boxes
    channels_last, pad_to : see :class:`seamseg.models.network.BatchOptions`
    crowd_boxes : training excludes the boxes of crowds, as for detection; otherwise the masks of crowds
    run_dense : runs :meth:`seamseg.models.panoptic.PanopticNet.dense` at inference, for example compiled, with outputs
        that the caller owns; None runs body and heads in turn
    """

    num_stuff: int
    anchors: AnchorGenerator
    proposals: ProposalGenerator
    anchor_matcher: AnchorMatcher
    matcher: ProposalMatcher
    semantic_loss: SemanticLoss
    rois: ROIExtractor
    selector: DetectionSelector
    crowd_boxes: bool = False
    run_dense: Callable[[Tensor], DenseOutputs] | None = None

    @staticmethod
    def of(config: Config, num_stuff: int) -> NetworkOptions:
        """Return the options of a configuration, for a data set with this number of stuff classes."""
        rpn, roi = config.rpn, config.roi
        if num_stuff == 0:
            # nothing else says where a mask ends
            roi = replace(roi, void_is_background=True)
        levels = slice(rpn.fpn_min_level, rpn.fpn_min_level + rpn.fpn_levels)
        return NetworkOptions(
            num_stuff=num_stuff,
            anchors=AnchorGenerator(rpn, config.fpn.out_strides[levels]),
            proposals=ProposalGenerator(rpn),
            anchor_matcher=AnchorMatcher(rpn, roi.fixed_samples),
            matcher=ProposalMatcher(roi),
            semantic_loss=SemanticLoss(config),
            rois=ROIExtractor(roi),
            selector=DetectionSelector(roi),
            channels_last=config.general.channels_last,
            crowd_boxes=not config.parts_of_kind.has_masks,
        )
