"""The network with its training: the outputs that losses need, and the losses."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from seamseg.models.heads.custom import HeadOutputs, head_losses, run_heads
from seamseg.models.heads.roi import ROIOutputs
from seamseg.models.heads.roi_targets import Things, leading_rows
from seamseg.models.heads.rpn import rpn_losses
from seamseg.models.network import Losses
from seamseg.models.panoptic_inference import Features, PanopticInference
from seamseg.structures import Batch, PackedSequence


@dataclass(frozen=True)
class TrainingOutputs:
    """Outputs of the network that :meth:`PanopticNet.loss` needs.

    anchors `A x 4`, obj_logits `N x A`, bbx_logits `N x A x 4`, things and proposals of each image (with rows of NaN
    after the last, if samples are fixed), semantic_logits `N x classes x h x w` or None without a semantic head, and
    the outputs of custom heads.
    """

    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
    anchors: Tensor
    obj_logits: Tensor
    bbx_logits: Tensor
    things: list[Things]
    proposals: PackedSequence
    rois: ROIOutputs
    semantic_logits: Tensor | None
    heads: list[HeadOutputs] = field(default_factory=list)


class PanopticNet(PanopticInference):
    """Seamless Scene Segmentation (Porzi et al. 2019; docs/contract.md, sections 3 and 4).

    The parts, which are the parameters, and prediction are those of the base class,
    :class:`seamseg.models.panoptic_inference.PanopticInference`. This class adds the forward pass of training, which
    samples proposals, and the losses.
    """

    @property
    def fixed(self) -> bool:
        """Whether every image gives the ROI head the same number of samples, see `[roi] fixed_samples`."""
        return self.options.matcher.config.fixed_samples

    def forward(self, images: PackedSequence, targets: Batch) -> TrainingOutputs:
        """Compute the outputs that :meth:`loss` needs.

        Parameters
        ----------
        images : `3 x H x W` each
        targets : ground truth, with which the proposals for the ROI head are sampled

        Notes
        -----
        With synchronised norms under torch.distributed all ranks must call this together. A rank without anything to
        sample runs the ROI head on zero rows: it takes part in every collective, forwards and backwards, with a weight
        of 0, and every parameter gets a gradient, there of 0.
        """
        features = self.encode(images)
        anchors, obj_logits, bbx_logits = self.score_anchors(features)
        scored = (obj_logits, bbx_logits, anchors, features.valid_sizes, self.training)
        make = self.options.proposals
        proposals = PackedSequence(list(make.padded(*scored)[0])) if self.fixed else make(*scored)
        things = Things.of(targets, self.options.num_stuff, self.options.crowd_boxes)
        return TrainingOutputs(
            features.padded_size,
            features.valid_sizes,
            anchors,
            obj_logits,
            bbx_logits,
            things,
            proposals,
            self._roi_outputs(features, proposals, things),
            self.classify(features),
            run_heads(self.custom_heads, features),
        )

    def loss(self, outputs: TrainingOutputs, targets: Batch) -> Losses:
        """Compute the losses of a batch, not weighted (docs/contract.md, section 4), with those of custom heads last.

        Those of the ROI head are 0, with a count and gradients of 0, if it ran on zero rows.
        """
        things, rpn = outputs.things, self.options.anchor_matcher.config
        boxes, crowds = [t.boxes for t in things], [t.crowd for t in things]
        matches = self.options.anchor_matcher.batch(outputs.anchors, boxes, outputs.valid_sizes, crowds)
        anchors = outputs.obj_logits, outputs.bbx_logits, outputs.anchors
        terms: dict[str, tuple[Tensor, Tensor | int]] = {
            **rpn_losses(*anchors, matches, boxes, rpn.sigma, rpn.num_samples),
            **outputs.rois.losses(things, targets.masks, self.options.matcher.config),
        }
        if outputs.semantic_logits is not None:
            terms |= self.options.semantic_loss(outputs.semantic_logits, outputs.padded_size, targets)
        return Losses.of(terms | head_losses(outputs.heads, targets))

    def _roi_outputs(self, features: Features, proposals: PackedSequence, things: list[Things]) -> ROIOutputs:
        sampled = self.options.matcher.batch(list(proposals), [t.boxes for t in things], [t.crowd for t in things])
        boxes, index = features.rows(PackedSequence([None if s is None else s.boxes for s in sampled]))
        x = self.options.rois(features.levels, boxes, index, features.padded_size)
        rows = leading_rows(sampled, boxes.device)
        rows_only = self.roi_head.with_masks and self.options.matcher.config.mask_positives_only
        cls_logits, bbx_logits, msk_logits = self.roi_head(x, rows, **({"rows_only": True} if rows_only else {}))
        return ROIOutputs(sampled, cls_logits, bbx_logits, msk_logits)
