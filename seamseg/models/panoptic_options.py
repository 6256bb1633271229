"""The settings of a panoptic network, from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from seamseg.config import Config
from seamseg.models.heads.roi import ProposalMatcher, ROIExtractor
from seamseg.models.heads.rpn import AnchorGenerator, AnchorMatcher, ProposalGenerator
from seamseg.models.heads.semantic import SemanticLoss
from seamseg.models.network import BatchOptions
from seamseg.models.panoptic_inference import DetectionSelector


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
            crowd_boxes=config.kind == "detection",
        )
