"""Predictions of a panoptic network: detections, masks and class maps of images; and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seamseg.config import Config
from seamseg.config.sections import Roi
from seamseg.maps.predictions import Prediction
from seamseg.models.custom import Head, predicted_maps
from seamseg.models.heads.roi import ProposalMatcher, ROIExtractor, ROIHead
from seamseg.models.heads.rpn import AnchorGenerator, AnchorMatcher, ProposalGenerator, RPNOutputs, Sizes
from seamseg.models.heads.semantic import SemanticLoss
from seamseg.models.network import BatchOptions, Network, PaddedPredictions
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.nms import best_scores, nms_fixed
from seamseg.ops.norm import is_pointwise
from seamseg.ops.upsample import upsample_argmax
from seamseg.structures import Features, PackedSequence

CANDIDATES = 4096
"""Scored boxes of an image that NMS chooses from where the host does not read how many are usable."""
_ROI_CHUNK = 256
"""Regions that the ROI head processes together on a CPU; bounds its memory. A GPU processes all at once."""


@dataclass(frozen=True)
class DetectionSelector:
    """Selection of detections among scored boxes (docs/contract.md, section 4 "Detections")."""

    config: Roi

    @torch.no_grad()
    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes `D x 4`, classes `D` (0 = first thing) and scores `D` of the detections of one image.

        From a box for each proposal and class, `K x things x 4`, clipped to the image, and scores `K x (things + 1)`,
        class 0 background. Ordered by class, then by decreasing score; by score alone when some had to be left out.
        """
        usable = (scores[:, 1:] > self.config.score_threshold) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        cls, row = torch.nonzero(usable.t(), as_tuple=True)
        boxes, classes, scores, total = self._suppress(boxes[row, cls], scores[row, cls + 1], cls)
        count = total.tolist()
        return boxes[:count], classes[:count], scores[:count]

    @torch.no_grad()
    def padded(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Select the detections in tensors whose shapes do not depend on their number: the host does not wait.

        Return boxes `R x 4`, classes and scores `R`, with rows of 0 at the end, R the largest number of detections, and
        int64 `2`: how many rows are detections, and 1 if they are those of a call. Otherwise 0: more boxes than
        :data:`CANDIDATES` are usable, and others than the best of them might be detections, too.
        """
        proposals, scores = boxes.shape[0], scores[:, 1:]
        usable = (scores > self.config.score_threshold) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        # class by class: the first of equal scores is that of the first class
        scores = torch.where(usable, scores, -torch.inf).t().flatten()
        best = best_scores(scores, CANDIDATES)
        cls, row = best // max(proposals, 1), best % max(proposals, 1)
        boxes, cls, scores, total = self._suppress(boxes[row, cls], scores[best], cls)
        most = boxes.shape[0]
        complete = (usable.sum() <= best.shape[0]) | (total > most)
        return boxes, cls, scores, torch.stack((total.clamp(max=most), complete.long()))

    def _suppress(self, boxes: Tensor, scores: Tensor, cls: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the detections among boxes `M x 4` in their order, then rows of 0, and how many boxes stay.

        Those with a score of -inf are left out. More may stay than there are rows.
        """
        exists, outside = scores > -torch.inf, torch.iinfo(cls.dtype).max
        # boxes that are left out form a group of their own, in which all but one are suppressed
        unit_box = torch.cat((torch.zeros_like(boxes[:1, :2]), torch.ones_like(boxes[:1, :2])), dim=1)
        group = torch.where(exists, cls, outside)
        kept, _ = nms_fixed(
            torch.where(exists[:, None], boxes, unit_box), scores, self.config.nms_threshold, groups=group
        )
        exists = (kept >= 0) & exists[kept]
        total, rows = exists.sum(), min(self.config.max_predictions, kept.shape[0])
        kept, exists = kept[:rows], exists[:rows]
        by_class = torch.where(exists, torch.where(total > rows, 0, cls[kept]), outside)
        order = torch.argsort(by_class, stable=True)
        kept, exists = kept[order], exists[order]
        boxes = torch.where(exists[:, None], boxes[kept], 0.0)
        return boxes, torch.where(exists, cls[kept], 0), torch.where(exists, scores[kept], 0.0), total


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(BatchOptions):
    """Settings of a :class:`PanopticNet`: anchors, samplers, thresholds.

    Parameters
    ----------
    num_stuff : stuff classes, which come before the things
    anchors : anchors, and the levels of the pyramid they live on
    proposals : makes proposals from the outputs of the RPN head
    anchor_matcher, proposal_matcher : match and sample anchors and proposals for training
    semantic_loss : the loss of the semantic head
    rois : extracts the features of regions
    selector : selects detections among the scored boxes
    channels_last, pad_to, run_dense : see :class:`seamseg.models.network.BatchOptions`
    crowd_boxes : training excludes the boxes of crowds, as for detection; otherwise the masks of crowds
    """

    num_stuff: int
    anchors: AnchorGenerator
    proposals: ProposalGenerator
    anchor_matcher: AnchorMatcher
    proposal_matcher: ProposalMatcher
    semantic_loss: SemanticLoss
    rois: ROIExtractor
    selector: DetectionSelector
    crowd_boxes: bool = False

    @staticmethod
    def of(config: Config, num_stuff: int) -> NetworkOptions:
        """Return the options of a configuration, for a data set with this number of stuff classes."""
        rpn, roi = config.rpn, config.roi
        if num_stuff == 0:
            # nothing else says where a mask ends
            roi = replace(roi, void_is_background=True)
        strides = config.fpn.out_strides[rpn.fpn_min_level : rpn.fpn_min_level + rpn.fpn_levels]
        return NetworkOptions(
            num_stuff=num_stuff,
            anchors=AnchorGenerator(rpn, tuple(stride * rpn.stride for stride in strides)),
            proposals=ProposalGenerator(rpn),
            anchor_matcher=AnchorMatcher(rpn, roi.fixed_samples),
            proposal_matcher=ProposalMatcher(roi),
            semantic_loss=SemanticLoss(config),
            rois=ROIExtractor(roi),
            selector=DetectionSelector(roi),
            channels_last=config.general.channels_last,
            crowd_boxes=not config.parts_of_kind.has_masks,
        )


class PanopticInference(Network):
    """The predictions of a :class:`seamseg.models.panoptic.PanopticNet`, which has the layers and runs them."""

    roi_head: ROIHead
    options: NetworkOptions
    custom_heads: Mapping[str, Head]
    encode: Callable[[PackedSequence], Features]
    score_anchors: Callable[[Features], RPNOutputs]
    classify: Callable[[Features], Tensor | None]

    @torch.no_grad()
    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction[Tensor]]:
        """Predict detections, masks and a class map for each image `3 x H x W`.

        Padding influences the result a little: batch only images of one size together if that matters. Detections that
        do not score above `least_score` may be left out, which saves their masks; no others change. RuntimeError if the
        network is in training mode.
        """
        if self.training:
            raise RuntimeError(f"{type(self).__name__}.predict: the network is in training mode, call eval() first")
        features = self.encode(images)
        things = self.predict_things(features, least_score)
        return [replace(found, semantic=classes) for found, classes in zip(things, self.segment(features))]

    def predict_things(self, features: Features, least_score: float = 0.0) -> list[Prediction[Tensor]]:
        """Return the predictions of :meth:`predict` without class maps."""
        anchors, obj_logits, bbx_logits = self.score_anchors(features)
        proposals = self.options.proposals(obj_logits, bbx_logits, anchors, features.valid_sizes, training=False)
        scored = self.score_proposals(features, proposals, features.valid_sizes)
        detections = [self.options.selector(*image) for image in scored]
        kept = [scores > least_score for _, _, scores in detections]
        # kernels may round the mask of a single region otherwise than that of the same region among others
        if least_score > 0 and int(torch.cat(kept).sum()) != 1:
            pairs = zip(kept, detections)
            detections = [(boxes[rows], classes[rows], scores[rows]) for rows, (boxes, classes, scores) in pairs]
        masks = self.mask(features, [boxes for boxes, _, _ in detections], [classes for _, classes, _ in detections])
        maps = predicted_maps(self.custom_heads, features) if self.custom_heads else [{} for _ in masks]
        rows = zip(detections, masks, features.valid_sizes, maps)
        return [Prediction(*detected, mask, None, size, maps=more) for detected, mask, size, more in rows]

    @torch.no_grad()
    def predict_padded(self, padded: Tensor, sizes: Tensor) -> PaddedPredictions:
        """See :class:`seamseg.models.network.Network`."""
        features = self.encode(PackedSequence(list(padded)))
        anchors, obj_logits, bbx_logits = self.score_anchors(features)
        limits = list(sizes.repeat(1, 2).float())
        proposals, _ = self.options.proposals.padded(obj_logits, bbx_logits, anchors, limits, training=False)
        scored = self.score_proposals(features, PackedSequence(list(proposals)), limits)
        boxes, classes, scores, found = zip(*(self.options.selector.padded(*image) for image in scored))
        masks = self.mask(features, list(boxes), list(classes))
        semantic = [None if x is None else x.byte() for x in self.segment(features)]
        rows = zip(boxes, classes, scores, masks, semantic)
        predictions = [Prediction(*row, features.padded_size) for row in rows]
        levels = features.levels if self.custom_heads else []
        return PaddedPredictions(predictions, torch.stack(found), levels, lambda: anchors)

    def score_proposals(
        self, features: Features, proposals: PackedSequence, sizes: Sizes
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a box (of NaN for proposals of NaN) for each proposal and class, and the scores, of each image."""
        boxes, index = features.rows(proposals)
        parts = [self.roi_head.boxes(x) for x, _ in self._roi_chunks(features, boxes.nan_to_num(), index)]
        cls_logits, bbx_logits = torch.cat([cls for cls, _ in parts]), torch.cat([bbx for _, bbx in parts])
        scores = torch.softmax(cls_logits.float(), dim=1)
        # made on the device: an upload would be part of a CUDA graph, but its source not
        weights = torch.stack([boxes.new_full((), x) for x in self.options.selector.config.bbx_reg_weights])
        decoded = decode_boxes(boxes[:, None], bbx_logits.float() / weights)
        # the rows are ordered by image: splitting by their numbers needs no transfer from a GPU
        rows = [0 if p is None else p.shape[0] for p in proposals]
        images = zip(torch.split(decoded, rows), torch.split(scores, rows), sizes)
        return [(clip_boxes(part, size), part_scores) for part, part_scores, size in images]

    def mask(self, features: Features, boxes: list[Tensor], classes: list[Tensor]) -> list[Tensor | None]:
        """Return mask logits `D x 2h x 2w` of the detections of each image; None without masks."""
        if not self.roi_head.with_masks:
            return [None] * len(boxes)
        all_boxes, all_classes = torch.cat(boxes), torch.cat(classes)
        index = torch.cat([c.new_full(c.shape, i) for i, c in enumerate(classes)])
        chunks = self._roi_chunks(features, all_boxes, index)
        head, found = self.roi_head, []
        plain = getattr(head.masks, "__func__", None) is ROIHead.masks and is_pointwise(head.roi_msk)
        for x, chunk in chunks:
            of_class = all_classes[chunk]
            if plain:
                # without the logits of the other classes
                weight, bias = head.roi_msk.weight.flatten(1)[of_class], head.roi_msk.bias
                masks = torch.einsum("kchw,kc->khw", head.conv(x), weight)
                masks = masks if bias is None else masks + bias[of_class, None, None]
            else:
                masks = head.masks(x)
                # not by two indices, a GatherND in ONNX, which some engines do not check
                masks = masks.gather(1, of_class[:, None, None, None].expand(-1, 1, *masks.shape[2:]))[:, 0]
            found.append(masks.float())
        return list(torch.split(torch.cat(found), [b.shape[0] for b in boxes]))

    def _roi_chunks(self, features: Features, boxes: Tensor, index: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """Yield the features of boxes, :data:`_ROI_CHUNK` at a time on a CPU, and their rows; once without any box."""
        count = max(boxes.shape[0], 1)
        chunk = _ROI_CHUNK if boxes.device.type == "cpu" else count
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            yield self.options.rois(features.levels, boxes[rows], index[rows], features.padded_size), rows

    def segment(self, features: Features) -> list[Tensor | None]:
        """Return the class map `H x W` (int64) of each image; None without a semantic head."""
        logits = self.classify(features)
        if logits is None:
            return [None] * len(features.valid_sizes)
        return [upsample_argmax(x, features.padded_size, size) for x, size in zip(logits, features.valid_sizes)]
