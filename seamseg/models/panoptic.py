"""The network: body, region proposals, ROI head and semantic head; from images to losses, and to predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor, nn

from seamseg.models.backbones.base import FPNBody
from seamseg.models.custom import Head, HeadOutputs, declared_outputs, head_losses, run_heads
from seamseg.models.heads.roi import ROIHead, ROIOutputs, leading_rows
from seamseg.models.heads.rpn import RPNOutputs, rpn_losses
from seamseg.models.network import Losses, mark_sizes_dynamic
from seamseg.models.panoptic_inference import NetworkOptions, PanopticInference
from seamseg.results import Detections, Panoptic
from seamseg.structures import Batch, Features, PackedSequence, Things


class DenseOutputs(NamedTuple):
    """Outputs of :meth:`PanopticNet.dense` for a padded batch, see :class:`Features`."""

    levels: list[Tensor]
    obj_logits: Tensor
    bbx_logits: Tensor
    shapes: list[tuple[int, int]]
    semantic_logits: Tensor | None


@dataclass(frozen=True)
class TrainingOutputs:
    """Outputs of the network for :meth:`PanopticNet.loss`; proposals of NaN fill up if samples are fixed."""

    features: Features
    rpn: RPNOutputs
    things: list[Things]
    proposals: PackedSequence
    rois: ROIOutputs
    semantic_logits: Tensor | None
    heads: list[HeadOutputs]


class PanopticNet(PanopticInference):
    """Seamless Scene Segmentation (Porzi et al. 2019; docs/contract.md, sections 3 and 4).

    Without a semantic head it does instance segmentation, without a mask branch either detection. The names of the four
    parts and the state-dict keys are as in the published snapshots.

    Parameters
    ----------
    body : images to pyramid levels
    rpn_head, roi_head, sem_head : the heads; sem_head None for the other tasks
    heads : custom heads by name; None for none
    options : everything else; :meth:`with_options` changes them
    """

    compiled_parts = ("body", "sem_head")
    dense_parts = ("body", "rpn_head", "sem_head")
    body: FPNBody
    rpn_head: nn.Module
    roi_head: ROIHead
    sem_head: nn.Module | None
    heads: nn.ModuleDict | None
    options: NetworkOptions

    def __init__(
        self,
        body: FPNBody,
        rpn_head: nn.Module,
        roi_head: ROIHead,
        sem_head: nn.Module | None,
        heads: nn.ModuleDict | None,
        options: NetworkOptions,
    ) -> None:
        parts: dict[str, nn.Module | None] = {"body": body, "rpn_head": rpn_head, "roi_head": roi_head}
        parts |= {"sem_head": sem_head, "heads": heads}
        super().__init__(parts, options)
        self.kind = "panoptic" if sem_head is not None else "instance_seg" if roi_head.with_masks else "detection"
        self.result_type = Panoptic if sem_head is not None else Detections
        self.nms_threshold = options.selector.config.nms_threshold
        self.custom_heads = {} if heads is None else dict(cast(Mapping[str, Head], heads))
        self.map_formats = {k: v for head in self.custom_heads.values() for k, v in declared_outputs(head).items()}

    @property
    def backbone(self) -> nn.Module:
        """The body without its pyramid."""
        return self.body.backbone

    def forward(self, images: PackedSequence, targets: Batch) -> TrainingOutputs:
        """Compute the outputs for :meth:`loss` of images `3 x H x W`, whose proposals are sampled by the targets.

        A rank without anything to sample runs the ROI head on zero rows: it takes part in every collective, also
        backwards, with a weight of 0, and every parameter gets a gradient, there of 0.
        """
        options, features = self.options, self.encode(images)
        rpn = self.score_anchors(features)
        scored = (rpn.obj_logits, rpn.bbx_logits, rpn.anchors, features.valid_sizes, self.training)
        # with a fixed number of samples the host need not know how many proposals there are
        fixed = options.proposal_matcher.config.fixed_samples
        proposals = PackedSequence(list(options.proposals.padded(*scored)[0])) if fixed else options.proposals(*scored)
        things = Things.of(targets, options.num_stuff, options.crowd_boxes)
        sampled = options.proposal_matcher.sample(list(proposals), things)
        boxes, index = features.rows(PackedSequence([None if s is None else s.boxes for s in sampled]))
        x = options.rois(features.levels, boxes, index, features.padded_size)
        rows = leading_rows(sampled, boxes.device)
        rows_only = self.roi_head.with_masks and options.proposal_matcher.config.mask_positives_only
        rois = ROIOutputs(sampled, rows, *self.roi_head(x, rows, rows_only))
        semantic_logits = self.classify(features)
        heads = run_heads(self.custom_heads, features)
        return TrainingOutputs(features, rpn, things, proposals, rois, semantic_logits, heads)

    def loss(self, outputs: TrainingOutputs, targets: Batch) -> Losses:
        """Compute the losses of a batch, not weighted (docs/contract.md, section 4), custom heads last."""
        options, things, features = self.options, outputs.things, outputs.features
        matches = options.anchor_matcher.sample(outputs.rpn.anchors, things, features.valid_sizes)
        terms = rpn_losses(outputs.rpn, matches, things, options.anchor_matcher.config)
        terms |= outputs.rois.losses(things, targets.masks, options.proposal_matcher.config)
        if outputs.semantic_logits is not None:
            terms |= options.semantic_loss(outputs.semantic_logits, features.padded_size, targets)
        return Losses.of(terms | head_losses(outputs.heads, targets))

    def step_problem(self) -> str | None:
        """See the base class."""
        options = self.options
        if not options.proposal_matcher.config.fixed_samples:
            return "[roi] fixed_samples is no"
        if options.crowd_boxes:
            return "the number of crowds of an image varies"
        if self.custom_heads:
            return f"head {next(iter(self.custom_heads))} has losses of its own"
        return None if self.sem_head is None else options.semantic_loss.step_problem()

    def step_constants(self, outputs: TrainingOutputs) -> Tensor:
        """See the base class."""
        return outputs.rpn.anchors

    def encode(self, images: PackedSequence) -> Features:
        """Pad the images to one size and run the body, or `run_in_training`, at inference `run_dense`."""
        padded, sizes = self.padded(images)
        size = int(padded.shape[-2]), int(padded.shape[-1])
        run = self.run_in_training if self.training else self.options.run_dense
        if run is None:
            return Features(self.body(padded), size, sizes)
        dense = run(padded)
        shapes = [(int(height), int(width)) for height, width in dense.shapes]
        return Features(dense.levels, size, sizes, dense.semantic_logits, (dense.obj_logits, dense.bbx_logits, shapes))

    def dense(self, padded: Tensor) -> DenseOutputs:
        """Run body, RPN head and semantic head on a padded batch `N x 3 x H x W`."""
        levels = self.body(padded)
        obj_logits, bbx_logits, shapes = self.rpn_head(levels)
        # the gradients of a level are added up as if the ROI head came between the other two
        outputs = [x.view_as(x) for x in levels] if self.training else levels
        semantic = None if self.sem_head is None else self.sem_head(levels)
        if self.training and semantic is not None:
            # as the gradient from the loss: a bias is summed in its order
            semantic = semantic.contiguous()
        return DenseOutputs(outputs, obj_logits, bbx_logits, shapes, semantic)

    def score_anchors(self, features: Features) -> RPNOutputs:
        """Run the RPN head, unless its outputs are known."""
        obj_logits, bbx_logits, shapes = features.rpn_outputs or self.rpn_head(features.levels)
        return RPNOutputs(self.options.anchors(tuple(shapes), obj_logits.device), obj_logits, bbx_logits)

    def classify(self, features: Features) -> Tensor | None:
        """Return semantic logits at the finest level's size; None without a semantic head."""
        if self.sem_head is None or features.semantic_logits is not None:
            return features.semantic_logits
        if self.compiled:
            mark_sizes_dynamic(features.levels)
        return cast(Tensor, self.sem_head(features.levels))
