"""Inference of the network: detections, masks and class maps from the features of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from seamseg.models.heads.points import PointSource
from seamseg.models.heads.roi import ROIHead
from seamseg.models.network import Network
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.upsample import upsample_argmax
from seamseg.predictions import Prediction
from seamseg.structures import PackedSequence

if TYPE_CHECKING:
    from seamseg.models.panoptic import Features, NetworkOptions

_ROI_CHUNK = 256
"""Regions that the ROI head processes together; bounds its memory."""


class DenseOutputs(NamedTuple):
    """Outputs of :class:`DensePart` for a padded batch.

    levels `N x C x h x w` from fine to coarse, obj_logits `N x A`, bbx_logits `N x A x 4`, shapes: `(height, width)` of
    the cells of each level that has anchors, semantic_logits `N x classes x h x w` or None without a semantic head.
    """

    levels: list[Tensor]
    obj_logits: Tensor
    bbx_logits: Tensor
    shapes: list[tuple[int, int]]
    semantic_logits: Tensor | None


RunDense = Callable[[Tensor], DenseOutputs]
"""From a padded batch `N x 3 x H x W`; the caller owns the tensors of the result."""


class DensePart(nn.Module):
    """Body, RPN head and semantic head of a network as one module.

    Its operations depend on the size of the images only, not on their content: a compiler or a CUDA graph can run it.

    Parameters
    ----------
    body, rpn_head, sem_head : of the network; no semantic head for other tasks
    rpn_levels : (first, number) of the levels that have anchors
    """

    def __init__(
        self, body: nn.Module, rpn_head: nn.Module, sem_head: nn.Module | None, rpn_levels: tuple[int, int]
    ) -> None:
        super().__init__()
        self.body = body
        self.rpn_head = rpn_head
        self.sem_head = sem_head
        self.rpn_levels = rpn_levels

    def forward(self, padded: Tensor) -> DenseOutputs:
        """Run on a padded batch `N x 3 x H x W`."""
        levels = self.body(padded)
        first, number = self.rpn_levels
        obj_logits, bbx_logits, shapes = self.rpn_head(levels[first : first + number])
        semantic = None if self.sem_head is None else self.sem_head(levels)
        return DenseOutputs(levels, obj_logits, bbx_logits, shapes, semantic)


class PanopticInference(Network):
    """What a :class:`seamseg.models.panoptic.PanopticNet` does at inference; it has the parts and computes features."""

    roi_head: ROIHead
    options: NetworkOptions

    def __init__(self, parts: dict[str, nn.Module | None], options: NetworkOptions) -> None:
        super().__init__(parts, options)
        self._code_weights: dict[torch.device, Tensor] = {}

    def features_and_anchors(self, images: PackedSequence) -> tuple[Features, tuple[Tensor, Tensor, Tensor]]:
        """Compute the features of images, and objectness logits, box codes and anchors."""
        raise NotImplementedError

    def classify(self, features: Features) -> Tensor | None:
        """Return semantic logits at the finest level's size; None without a semantic head."""
        raise NotImplementedError

    @torch.no_grad()
    def predict(
        self, images: PackedSequence, segment: Callable[[Features], list[Tensor | None]] | None = None
    ) -> list[Prediction[Tensor]]:
        """Predict detections, masks and a class map for each image.

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
        features, scored = self.features_and_anchors(images)
        proposals = self.options.proposals(*scored, features.valid_sizes, training=False)
        detections = self.detect(features, proposals)
        masks = self.mask(features, [boxes for boxes, _, _ in detections], [classes for _, classes, _ in detections])
        semantic = (segment or self.segment)(features)
        return [
            Prediction(boxes, classes, scores, mask, classmap, size)
            for (boxes, classes, scores), mask, classmap, size in zip(detections, masks, semantic, features.valid_sizes)
        ]

    def detect(self, features: Features, proposals: PackedSequence) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return boxes, classes and scores of the detections of each image, from its proposals."""
        boxes, index = features.rows(proposals)
        cls_logits, bbx_logits = self.score_boxes(features, boxes, index)
        scores = torch.softmax(cls_logits.float(), dim=1)
        decoded = decode_boxes(boxes[:, None], bbx_logits.float() / self._weights_on(boxes.device))
        # the rows are ordered by image: splitting by their numbers needs no transfer from a GPU
        rows = [0 if p is None else p.shape[0] for p in proposals]
        return [
            self.options.selector(clip_boxes(part, size), part_scores)
            for part, part_scores, size in zip(
                torch.split(decoded, rows), torch.split(scores, rows), features.valid_sizes
            )
        ]

    def _weights_on(self, device: torch.device) -> Tensor:
        """Return the factors of the box codes, float32 `4`; cached, as each copy to a GPU would block the host."""
        if device not in self._code_weights:
            with torch.inference_mode(False):
                weights = self.options.bbx_reg_weights
                self._code_weights[device] = torch.tensor(weights, dtype=torch.float32, device=device)
        return self._code_weights[device]

    def score_boxes(self, features: Features, boxes: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits `K x (things + 1)` and box codes `K x things x 4` of boxes `K x 4` on images `index`."""
        parts = []
        for start in range(0, max(boxes.shape[0], 1), _ROI_CHUNK):
            chunk = slice(start, start + _ROI_CHUNK)
            x = self.options.rois(features.levels, boxes[chunk], index[chunk], features.padded_size)
            parts.append(self.roi_head.boxes(x))
        return torch.cat([cls for cls, _ in parts]), torch.cat([bbx for _, bbx in parts])

    def mask(self, features: Features, boxes: list[Tensor], classes: list[Tensor]) -> list[Tensor | None]:
        """Return mask logits `D x 28 x 28` of the detections of each image, larger if refined; None without masks."""
        if not self.roi_head.with_masks:
            return [None] * len(boxes)
        all_boxes, all_classes = torch.cat(boxes), torch.cat(classes)
        index = torch.cat([c.new_full(c.shape, i) for i, c in enumerate(classes)])
        parts = []
        for start in range(0, max(all_boxes.shape[0], 1), _ROI_CHUNK):
            chunk = slice(start, start + _ROI_CHUNK)
            x = self.options.rois(features.levels, all_boxes[chunk], index[chunk], features.padded_size)
            parts.append(self.roi_head.masks_of(x, all_classes[chunk]).float())
        masks = torch.cat(parts)
        if self.roi_head.roi_pts is not None:
            source = PointSource(features.levels[0], features.padded_size, all_boxes, index, all_classes, masks)
            masks = self.roi_head.roi_pts.refine(source)
        return list(torch.split(masks, [b.shape[0] for b in boxes]))

    def segment(self, features: Features) -> list[Tensor | None]:
        """Return the class map `H x W` (int64) of each image; None without a semantic head."""
        logits = self.classify(features)
        if logits is None:
            return [None] * len(features.valid_sizes)
        return [upsample_argmax(x, features.padded_size, size) for x, size in zip(logits, features.valid_sizes)]
