"""The losses of networks, and a network with its losses as one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seamseg.config import KINDS, Config
from seamseg.config.components import Component
from seamseg.models.heads.custom import head_losses
from seamseg.models.heads.roi import box_loss, class_loss, mask_loss, of_class
from seamseg.models.heads.roi_targets import box_targets, labels_of, mask_targets
from seamseg.models.heads.rpn import AnchorMatcher, rpn_losses
from seamseg.models.heads.semantic import SemanticImage, semantic_loss, semantic_target
from seamseg.models.network import Network, SemanticLogits
from seamseg.models.panoptic import TrainingOutputs
from seamseg.ops.boxes import smooth_l1
from seamseg.structures import Batch
from seamseg.utils.component_errors import named_errors
from seamseg.utils.errors import SeamsegError

_Term = tuple[Tensor, "Tensor | int"]


class Losses(NamedTuple):
    """The losses of a batch by name, in the order of `[optimizer] loss_weights`.

    Attributes
    ----------
    means : scalars, each a mean over anchors, samples, mask pixels or images
    counts : their number, float64 scalars on the same device. The loss of several batches, of other processes or
        steps, is the mean of their means weighted by the counts
    metrics : scalars that are only reported, such as an accuracy, each a mean over the images
    """

    means: dict[str, Tensor]
    counts: dict[str, Tensor]
    metrics: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class SemanticCriterion:
    """The loss of semantic logits, see :func:`seamseg.models.heads.semantic.semantic_loss`, not weighted.

    Parameters
    ----------
    image_loss : function that returns the loss of one image
    """

    image_loss: Callable[[SemanticImage], Tensor]

    @staticmethod
    def of(config: Config) -> SemanticCriterion:
        """Return that of `[sem] loss`."""
        component, keys = config.component("loss")
        if component.built_in:
            return SemanticCriterion(partial(component.make, keys=keys))
        return SemanticCriterion(partial(_custom_image_loss, component, keys))

    def __call__(self, output: SemanticLogits, targets: Batch) -> Losses:
        """Compute `sem_loss`."""
        loss, count = self.term(output.logits, output.padded_size, targets)
        return Losses({"sem_loss": loss}, {"sem_loss": as_count(count, loss.device)})

    def term(self, logits: Tensor, padded_size: tuple[int, int], targets: Batch) -> _Term:
        """Return the loss of logits `N x classes x h x w`, and the number of images with ground truth."""
        pairs = enumerate(zip(targets.masks, targets.categories))
        classes = {i: semantic_target(m, c) for i, (m, c) in pairs if m is not None and c is not None}
        if not classes:
            return logits[:0].float().sum(), 0
        labelled = logits if len(classes) == logits.shape[0] else logits[list(classes)]
        return semantic_loss(labelled, padded_size, list(classes.values()), self.image_loss), len(classes)


def _custom_image_loss(component: Component, keys: Any, image: SemanticImage) -> Tensor:
    """Call the function of a user; SeamsegError if it does not return the loss of an image."""
    with named_errors(component.section, component.module):
        loss: Tensor = component.make(image, keys)
    if not isinstance(loss, Tensor) or loss.ndim:
        given = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise SeamsegError(f"{component.section} ({component.file}): must return a scalar tensor, returned {given}")
    return loss


class Criterion:
    """The losses of the network (docs/contract.md, section 4), not weighted.

    Parameters
    ----------
    config : configuration of kind panoptic, instance_seg or detection

    Attributes
    ----------
    names : the losses of this kind, see :data:`seamseg.config.kinds.KINDS`
    anchor_matcher : makes the targets of the anchors
    mask_size : `(height, width)` of the masks, None without a mask branch
    semantic : the loss of the semantic head; None without one
    """

    def __init__(self, config: Config) -> None:
        height, width = config.roi.roi_size
        self.names = KINDS[config.kind].losses
        self.rpn, self.roi = config.rpn, config.roi
        self.anchor_matcher = AnchorMatcher(config.rpn, config.roi.fixed_samples)
        self.mask_size = (2 * height, 2 * width) if KINDS[config.kind].has_masks else None
        self.semantic = SemanticCriterion.of(config) if config.kind == "panoptic" else None

    def __call__(self, outputs: TrainingOutputs, targets: Batch) -> Losses:
        """Compute the losses; those of the ROI head are 0, with a count and gradients of 0, if it ran on zero rows."""
        terms = [*self._rpn(outputs), *self._roi(outputs, targets)]
        if outputs.semantic_logits is not None and self.semantic is not None:
            terms.append(self.semantic.term(outputs.semantic_logits, outputs.padded_size, targets))
        device = outputs.obj_logits.device
        named = dict(zip(self.names, terms, strict=True)) | head_losses(outputs.heads, targets)
        return Losses(
            {name: loss for name, (loss, _) in named.items()},
            {name: as_count(count, device) for name, (_, count) in named.items()},
        )

    def _rpn(self, outputs: TrainingOutputs) -> list[_Term]:
        boxes = [t.boxes for t in outputs.things]
        crowds = [t.crowd for t in outputs.things]
        matches = self.anchor_matcher.batch(outputs.anchors, boxes, outputs.valid_sizes, crowds)
        objectness, regression, count = rpn_losses(
            outputs.obj_logits,
            outputs.bbx_logits,
            outputs.anchors,
            matches,
            boxes,
            self.rpn.sigma,
            self.rpn.num_samples,
        )
        return [(objectness, count), (regression, count)]

    def _roi(self, outputs: TrainingOutputs, targets: Batch) -> list[_Term]:
        rois = outputs.rois
        if all(sample is None for sample in rois.samples):
            # sums of no rows: their backward pass runs the collectives of the head on this rank too
            logits = (rois.cls_logits, rois.bbx_logits, rois.msk_logits)
            return [(x.float().sum(), 0) for x in logits if x is not None]
        roi_targets = self._roi_targets(outputs, targets)
        labels = roi_targets.labels
        given = [sample.weight for sample in rois.samples if sample is not None and sample.weight is not None]
        weights = torch.cat(given) if given else None
        count = labels.shape[0] if weights is None else weights.sum()
        errors = smooth_l1(of_class(rois.bbx_logits, labels), roi_targets.codes, self.roi.sigma)
        terms: list[_Term] = [
            (class_loss(rois.cls_logits, labels, weights), count),
            (box_loss(errors, labels, weights), count),
        ]
        if rois.msk_logits is not None:
            terms.append(mask_loss(rois.msk_logits, roi_targets.mask_labels, roi_targets.masks))
        return terms

    @torch.no_grad()
    def _roi_targets(self, outputs: TrainingOutputs, targets: Batch) -> _ROITargets:
        labels, codes, leading_labels, masks = [], [], [], []
        for sample, things, ids in zip(outputs.rois.samples, outputs.things, targets.masks, strict=True):
            if sample is None:
                continue
            labels.append(labels_of(sample.match, things.classes))
            codes.append(box_targets(sample.boxes, things.boxes, sample.match, self.roi.bbx_reg_weights))
            leading_labels.append(labels[-1][: sample.leading])
            if self.mask_size is not None:
                assert ids is not None
                first = (sample.boxes[: sample.leading], sample.match[: sample.leading], things.ids, ids)
                masks.append(mask_targets(*first, self.mask_size, self.roi.void_is_background))
        return _ROITargets(
            torch.cat(labels),
            torch.cat(codes),
            torch.cat(leading_labels),
            torch.cat(masks) if masks else torch.empty(0),
        )


class TrainingModule(nn.Module):
    """A network and its losses as one module, which DistributedDataParallel wraps.

    The parameters of all heads get a gradient in every step, so that DistributedDataParallel needs no
    `find_unused_parameters`: a rank whose images have nothing for the ROI head runs it on zero rows, with losses and
    gradients of 0.

    Parameters
    ----------
    net : the network, called with the images of a batch and the batch
    criterion : its losses, called with the outputs of the network and the batch
    """

    def __init__(self, net: Network, criterion: Callable[..., Losses]) -> None:
        super().__init__()
        self.net = net
        self.criterion = criterion

    def forward(self, batch: Batch) -> Losses:
        """Compute the losses of a batch, not weighted."""
        return self.criterion(self.net(batch.images, batch), batch)


class _ROITargets(NamedTuple):
    """Labels `M` and box codes `M x 4` of the samples of all images, labels `P` and masks of the leading ones."""

    labels: Tensor
    codes: Tensor
    mask_labels: Tensor
    masks: Tensor


def as_count(count: Tensor | int, device: torch.device) -> Tensor:
    """Return a count on the device; a number is filled in there, as a copy would block the host."""
    if isinstance(count, Tensor):
        return count.double()
    return torch.full((), count, dtype=torch.float64, device=device)
