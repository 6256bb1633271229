"""The network: body, region proposals, ROI head and semantic head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seamseg.models.backbones.fpn import FPNBody
from seamseg.models.dense import DensePart, RunDense, let_sizes_vary
from seamseg.models.heads.roi import DetectionSelector, ROIExtractor, ROIHead
from seamseg.models.heads.roi_targets import ProposalMatcher, leading_rows
from seamseg.models.heads.rpn import AnchorGenerator, ProposalGenerator, RPNHead
from seamseg.models.heads.semantic import SemanticHead
from seamseg.models.outputs import Features, ROIOutputs, Things, TrainingOutputs
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.upsample import upsample_argmax
from seamseg.structures import Batch, PackedSequence, Prediction

_ROI_CHUNK = 256
"""Regions that the ROI head looks at together at inference; bounds its memory."""


class PanopticNet(nn.Module):
    """Seamless Scene Segmentation (Porzi et al. 2019; SPEC sections 3 and 4).

    The same class does instance segmentation (no semantic head) and detection (no mask branch either). The names of the
    four parts and their state-dict keys are those of the published snapshots.

    Parameters
    ----------
    body : images to pyramid levels
    rpn_head, roi_head, sem_head : the heads; sem_head None for the other tasks
    num_stuff : stuff classes, which come before the things
    anchors, rpn_levels : anchors, and the (first, number) of levels of the pyramid they live on
    proposals, matcher, rois, selector : how proposals are made, sampled for training, looked up and judged
    bbx_reg_weights : factors of the box codes of the ROI head
    channels_last : run in channels-last memory format

    Attributes
    ----------
    dtype : of the network's input; None for that of the images
    sizes_vary : tell torch.compile, where parts of the network went through it, that heights and widths change
    run_dense : called at inference for :meth:`dense_part`, such as a compiled form of it; None: its parts in turn
    pad_to : at inference, sides of a batch are padded to multiples of this
    """

    def __init__(
        self,
        body: FPNBody,
        rpn_head: RPNHead,
        roi_head: ROIHead,
        sem_head: SemanticHead | None,
        *,
        num_stuff: int,
        anchors: AnchorGenerator,
        rpn_levels: tuple[int, int],
        proposals: ProposalGenerator,
        matcher: ProposalMatcher,
        rois: ROIExtractor,
        selector: DetectionSelector,
        bbx_reg_weights: tuple[float, ...],
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        self.body = body
        self.rpn_head = rpn_head
        self.roi_head = roi_head
        self.sem_head = sem_head
        self.num_stuff = num_stuff
        self.anchors = anchors
        self.rpn_levels = rpn_levels
        self.proposals = proposals
        self.matcher = matcher
        self.rois = rois
        self.selector = selector
        self.bbx_reg_weights = bbx_reg_weights
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.to(memory_format=self.memory_format)
        self.sizes_vary = False
        self.dtype: torch.dtype | None = None
        self.run_dense: RunDense | None = None
        self.pad_to = 1
        self._code_weights: dict[torch.device, Tensor] = {}

    # Training

    def forward(self, images: PackedSequence, targets: Batch) -> TrainingOutputs:
        """Outputs on a batch for the criterion; no losses yet.

        Parameters
        ----------
        images : `3 x H x W` each
        targets : ground truth, from which the proposals that the ROI head sees are sampled

        Returns
        -------
        TrainingOutputs

        Notes
        -----
        With synchronised norms under torch.distributed all ranks must call this together. A rank without anything to
        sample runs the ROI head on zero rows: it takes part in every collective, forwards and backwards, with a weight
        of 0, and every parameter gets a gradient, there of 0.
        """
        features = self.encode(images)
        anchors, obj_logits, bbx_logits = self.score_anchors(features)
        scored = (obj_logits, bbx_logits, anchors, features.valid_sizes, self.training)
        proposals = PackedSequence(list(self.proposals.padded(*scored)[0])) if self.fixed else self.proposals(*scored)
        things = Things.of(targets, self.num_stuff)
        return TrainingOutputs(
            features.padded_size,
            features.valid_sizes,
            anchors,
            obj_logits,
            bbx_logits,
            things,
            proposals,
            self._train_rois(features, proposals, things),
            self.classify(features),
        )

    @property
    def fixed(self) -> bool:
        """Whether every image gives the ROI head the same number of samples, see `[roi] fixed_samples`."""
        return self.matcher.fixed

    def _train_rois(self, features: Features, proposals: PackedSequence, things: list[Things]) -> ROIOutputs:
        sampled = self.matcher.batch(list(proposals), [t.boxes for t in things], [t.crowd_mask for t in things])
        samples = PackedSequence([None if s is None else s.boxes for s in sampled])
        matches = PackedSequence([None if s is None else s.match for s in sampled])
        weights = PackedSequence([None if s is None else s.weight for s in sampled])
        leading = tuple(0 if s is None else s.leading for s in sampled)
        boxes, index = _rows(samples, features)
        x = self.rois(features.levels, boxes, index, features.padded_size)
        logits = self.roi_head(x, leading_rows(sampled, boxes.device))
        return ROIOutputs(samples, matches, weights, leading, *logits)

    # Inference

    @torch.no_grad()
    def predict(
        self, images: PackedSequence, segment: Callable[[Features], list[Tensor | None]] | None = None
    ) -> list[Prediction]:
        """What the network sees on each image.

        Padding influences the result a little: batch only images of one size together if that matters.

        Parameters
        ----------
        images : `3 x H x W` each
        segment : makes the class maps, instead of :meth:`segment`

        Returns
        -------
        list of Prediction, one an image

        Raises
        ------
        RuntimeError
            if the network is in training mode
        """
        if self.training:
            raise RuntimeError("PanopticNet.predict: the network is in training mode, call eval() first")
        features, scored = self._look(images)
        proposals = self.proposals(*scored, features.valid_sizes, training=False)
        detections = self.detect(features, proposals)
        masks = self.mask(features, [boxes for boxes, _, _ in detections], [classes for _, classes, _ in detections])
        semantic = (segment or self.segment)(features)
        return [
            Prediction(boxes, classes, scores, mask, classmap, size)
            for (boxes, classes, scores), mask, classmap, size in zip(detections, masks, semantic, features.valid_sizes)
        ]

    def encode(self, images: PackedSequence) -> Features:
        """Pad the images to one size and run the body."""
        padded, sizes = self._padded(images)
        return Features(self.body(padded), (int(padded.shape[-2]), int(padded.shape[-1])), sizes)

    def _padded(self, images: PackedSequence) -> tuple[Tensor, list[tuple[int, int]]]:
        padded, sizes = images.as_padded(multiple=1 if self.training else self.pad_to)
        padded = padded.to(dtype=self.dtype, memory_format=self.memory_format)
        if self.sizes_vary:
            let_sizes_vary([padded])
        return padded, sizes

    def dense_part(self) -> DensePart:
        """Body, RPN head and semantic head, to be compiled or recorded."""
        return DensePart(self.body, self.rpn_head, self.sem_head, self.rpn_levels)

    def _look(self, images: PackedSequence) -> tuple[Features, tuple[Tensor, Tensor, Tensor]]:
        """Features of images, and objectness logits, box codes and anchors."""
        if self.run_dense is None:
            features = self.encode(images)
            anchors, obj_logits, bbx_logits = self.score_anchors(features)
            return features, (obj_logits, bbx_logits, anchors)
        padded, sizes = self._padded(images)
        seen = self.run_dense(padded)
        size = int(padded.shape[-2]), int(padded.shape[-1])
        features = Features(list(seen.levels), size, sizes, seen.semantic_logits)
        shapes = [(int(height), int(width)) for height, width in seen.shapes]
        return features, (seen.obj_logits, seen.bbx_logits, self.anchors(shapes, seen.obj_logits.device))

    def score_anchors(self, features: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors `A x 4`, their objectness logits `N x A` and box codes `N x A x 4`."""
        first, number = self.rpn_levels
        obj_logits, bbx_logits, shapes = self.rpn_head(features.levels[first : first + number])
        return self.anchors(shapes, obj_logits.device), obj_logits, bbx_logits

    def classify(self, features: Features) -> Tensor | None:
        """Semantic logits at the finest level's size; None without a semantic head."""
        if self.sem_head is None or features.semantic_logits is not None:
            return features.semantic_logits
        if self.sizes_vary:
            let_sizes_vary(features.levels)
        return self.sem_head(features.levels)

    def detect(self, features: Features, proposals: PackedSequence) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Boxes, classes and scores of the detections of each image, from its proposals."""
        boxes, index = _rows(proposals, features)
        cls_logits, bbx_logits = self.judge(features, boxes, index)
        scores = torch.softmax(cls_logits.float(), dim=1)
        decoded = decode_boxes(boxes[:, None], bbx_logits.float() / self._weights_on(boxes.device))
        # rows come image after image: nobody has to ask a GPU whose they are
        rows = [0 if p is None else p.shape[0] for p in proposals]
        return [
            self.selector(clip_boxes(part, size), part_scores)
            for part, part_scores, size in zip(decoded.split(rows), scores.split(rows), features.valid_sizes)
        ]

    def _weights_on(self, device: torch.device) -> Tensor:
        """The factors of the box codes, float32 `4`; kept, as a copy to a GPU would be waited for each time."""
        if device not in self._code_weights:
            with torch.inference_mode(False):
                self._code_weights[device] = torch.tensor(self.bbx_reg_weights, dtype=torch.float32, device=device)
        return self._code_weights[device]

    def judge(self, features: Features, boxes: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits `K x (things + 1)` and box codes `K x things x 4` of boxes `K x 4` on the images `index`."""
        parts = []
        for start in range(0, max(boxes.shape[0], 1), _ROI_CHUNK):
            chunk = slice(start, start + _ROI_CHUNK)
            x = self.rois(features.levels, boxes[chunk], index[chunk], features.padded_size)
            parts.append(self.roi_head.boxes(x))
        return torch.cat([cls for cls, _ in parts]), torch.cat([bbx for _, bbx in parts])

    def mask(self, features: Features, boxes: list[Tensor], classes: list[Tensor]) -> list[Tensor | None]:
        """Mask logits `D x 28 x 28` of the detections of each image; None without a mask branch."""
        if not self.roi_head.with_masks:
            return [None] * len(boxes)
        all_boxes, all_classes = torch.cat(boxes), torch.cat(classes)
        index = torch.cat([c.new_full(c.shape, i) for i, c in enumerate(classes)])
        parts = []
        for start in range(0, max(all_boxes.shape[0], 1), _ROI_CHUNK):
            chunk = slice(start, start + _ROI_CHUNK)
            x = self.rois(features.levels, all_boxes[chunk], index[chunk], features.padded_size)
            parts.append(self.roi_head.masks_of(x, all_classes[chunk]).float())
        return list(torch.cat(parts).split([b.shape[0] for b in boxes]))

    def segment(self, features: Features) -> list[Tensor | None]:
        """Class map `H x W` (int64) of each image; None without a semantic head."""
        if self.sem_head is None:
            return [None] * len(features.valid_sizes)
        logits = self.classify(features)
        assert logits is not None
        return [upsample_argmax(x, features.padded_size, size) for x, size in zip(logits, features.valid_sizes)]


def _rows(boxes: PackedSequence, features: Features) -> tuple[Tensor, Tensor]:
    """All boxes of a batch, `K x 4`, and the image of each, int64 `K`; K is 0 where no image has any."""
    rows, index = boxes.concatenated()
    if rows is None or index is None:
        like = features.levels[0]
        return like.new_zeros((0, 4), dtype=torch.float32), like.new_zeros(0, dtype=torch.long)
    return rows, index
