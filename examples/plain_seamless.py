"""Seamless Scene Segmentation written plainly, to read it and to measure the fast code of the package against it.

Batch norm and activation are layers of their own, maps are NCHW, all anchors are decoded, detections are suppressed
class by class, the semantic head pools windows of 64x64 and enlarges its classes to the full image, masks are pasted
on the full image. `separated` pools along one axis after the other, 32 times less work, and changes nothing else. It
is plain torch and runs without the kernels of the package, except for the matching of boxes in training. Weights are
shared with the network that it is made of, up to `to_batchnorm`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.fusion import FusedMap, to_result
from seamseg.inference.network import TorchNetwork
from seamseg.inference.predictor import Predictor
from seamseg.inplace_abn import to_batchnorm
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import ArrayPrediction
from seamseg.models.heads.roi import ROIExtractor
from seamseg.models.heads.rpn import ProposalGenerator
from seamseg.models.heads.semantic import MiniDeepLab, SemanticHead, semantic_target
from seamseg.models.network import Losses, TrainingModule
from seamseg.models.panoptic import PanopticNet
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.ops import pooling
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.ops.reference.boxes import nms
from seamseg.results import Panoptic
from seamseg.structures import Batch, Features, PackedSequence


def plain_network(net: PanopticNet, separated: bool = False) -> PlainNet:
    """Return a network with the weights of one that is not folded; `separated` as in the module's description."""
    converted: Any = torch_poolings(to_batchnorm(net))
    head = PlainSemanticHead(converted.sem_head, separated)
    old = net.options
    options = replace(
        old,
        channels_last=False,
        proposals=PlainProposals(**vars(old.proposals)),
        rois=PlainROIs(**vars(old.rois)),
        selector=PlainSelector(**vars(old.selector)),
    )
    parts = converted.body, converted.rpn_head, converted.roi_head
    made = PlainNet(*parts, head, None, options)  # type: ignore[arg-type]
    return made.train(net.training)


def plain_predictor(predictor: Predictor[Panoptic], separated: bool = False) -> PlainPredictor:
    """Return a predictor with the network of one that is not folded."""
    network = predictor.network
    assert isinstance(network, TorchNetwork) and isinstance(network.net, PanopticNet)
    plain = TorchNetwork(plain_network(network.net, separated), network.normalise, network.device)
    plain.fixed_size = False  # the parts of this file have the sizes of what is found
    return PlainPredictor(plain, predictor.metadata, predictor.input_size, predictor.thresholds)


class PlainNet(PanopticNet):
    """The network; see the module's description."""

    def _roi_chunks(self, features: Features, boxes: Tensor, index: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """Yield all boxes as one batch, see the base class."""
        yield self.options.rois(features.levels, boxes, index, features.padded_size), slice(None)

    def mask(self, features: Features, boxes: list[Tensor], classes: list[Tensor]) -> list[Tensor | None]:
        """Compute the masks of all classes and take those of the detections, see the base class."""
        index = torch.cat([c.new_full(c.shape, i) for i, c in enumerate(classes)])
        x = self.options.rois(features.levels, torch.cat(boxes), index, features.padded_size)
        masks = self.roi_head.masks(x)
        rows = torch.arange(masks.shape[0], device=masks.device)
        return list(torch.split(masks[rows, torch.cat(classes)], [b.shape[0] for b in boxes]))

    def segment(self, features: Features) -> list[Tensor | None]:
        """Enlarge the logits of all classes to the padded image, see the base class."""
        logits = self.classify(features)
        assert logits is not None
        logits = functional.interpolate(logits, size=features.padded_size, mode="bilinear", align_corners=False)
        return [x[:, :height, :width].argmax(0) for x, (height, width) in zip(logits, features.valid_sizes)]


class PlainSemanticHead(nn.Module):
    """The head with the layers of another; runs the classifier on all enlarged levels.

    Parameters
    ----------
    head : head whose layers it takes
    separated : pool along one axis after the other
    """

    def __init__(self, head: SemanticHead, separated: bool = False) -> None:
        super().__init__()
        self.head, self.separated = head, separated

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Map all levels of the pyramid, finest first, to logits `N x num_classes x h x w` of its size."""
        head, outputs = self.head, []
        used = levels[head.min_level : head.min_level + head.num_levels]
        for level, x in zip(head.output, used):
            assert isinstance(level, MiniDeepLab)
            pooled = self._pool(x, level.pooling_size)
            y = torch.cat([level.conv1_3x3(x), level.conv1_dil(x), level.conv1_glb(pooled)], dim=1)
            y = level.bn2(level.conv2(level.bn1(y)))
            outputs.append(functional.interpolate(y, size=used[0].shape[-2:], mode="bilinear", align_corners=False))
        logits: Tensor = head.conv_sem(torch.cat(outputs, dim=1))
        return logits

    def _pool(self, x: Tensor, window: tuple[int, int]) -> Tensor:
        height, width = (min(k, size) for k, size in zip(window, x.shape[-2:]))
        if self.separated:
            pooled = functional.avg_pool2d(functional.avg_pool2d(x, (height, 1), stride=1), (1, width), stride=1)
        else:
            pooled = functional.avg_pool2d(x, (height, width), stride=1)
        top, left = (height - 1) // 2, (width - 1) // 2
        return functional.pad(pooled, (left, width - 1 - left, top, height - 1 - top), mode="replicate")


class PlainProposals(ProposalGenerator):
    """Decodes all anchors before the best are chosen."""

    @torch.no_grad()
    def __call__(
        self,
        obj_logits: Tensor,
        bbx_logits: Tensor,
        anchors: Tensor,
        valid_sizes: Sequence[tuple[int, int]],
        training: bool,
    ) -> PackedSequence:
        """Choose the proposals of each image, see the base class."""
        rpn = self.config
        before = rpn.num_pre_nms_train if training else rpn.num_pre_nms_val
        after = rpn.num_post_nms_train if training else rpn.num_post_nms_val
        proposals: list[Tensor | None] = []
        for scores, codes, size in zip(obj_logits, bbx_logits, valid_sizes):
            boxes = clip_boxes(decode_boxes(anchors, codes), size)
            if rpn.min_size > 0:
                large = ((boxes[:, 2:] - boxes[:, :2]) >= rpn.min_size).all(dim=1)
                boxes, scores = boxes[large], scores[large]
            scores, best = scores.topk(min(before, scores.shape[0]))
            kept = boxes[best][nms(boxes[best], scores, rpn.nms_threshold, after, None)]
            proposals.append(kept if kept.shape[0] > 0 else None)
        return PackedSequence(proposals)


class PlainROIs(ROIExtractor):
    """Samples the boxes of each image and level with `grid_sample`, whose points are those of our ROI sampling."""

    def __call__(self, levels: Sequence[Tensor], boxes: Tensor, index: Tensor, padded_size: tuple[int, int]) -> Tensor:
        """Sample the features of boxes, see the base class."""
        level = self.level_of(boxes)
        out = levels[0].new_zeros(boxes.shape[0], levels[0].shape[1], *self.config.roi_size)
        first = self.config.fpn_min_level
        for number in range(first, first + self.config.fpn_levels):
            for image in range(levels[number].shape[0]):
                here = ((level == number) & (index == image)).nonzero().squeeze(1)
                if here.shape[0] > 0:
                    x = levels[number][image : image + 1]
                    scale = boxes.new_tensor([x.shape[2] / padded_size[0], x.shape[3] / padded_size[1]]).repeat(2)
                    out = out.index_put((here,), self._sample(x, (boxes[here] - 0.5) * scale + 0.5))
        return out

    def _sample(self, x: Tensor, boxes: Tensor) -> Tensor:
        """Sample one map `1 x C x h x w` at boxes `K x 4` in its pixels: `K x C x roi_size`."""
        count, (height, width) = boxes.shape[0], self.config.roi_size
        y = _centres(boxes[:, 0], boxes[:, 2], height) * (2 / x.shape[2]) - 1
        z = _centres(boxes[:, 1], boxes[:, 3], width) * (2 / x.shape[3]) - 1
        points = torch.stack((z[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), dim=-1)
        rows = points.reshape(1, count * height, width, 2)
        sampled = functional.grid_sample(x, rows, mode="bilinear", padding_mode="border", align_corners=False)
        return torch.unflatten(sampled[0], 1, (count, height)).transpose(0, 1)


class PlainSelector(DetectionSelector):
    """Suppresses the boxes of one class after the other."""

    @torch.no_grad()
    def __call__(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select the detections of one image, see the base class."""
        parts = [(boxes[:0, 0], scores[:0, 0].long(), scores[:0, 0])]
        for number in range(boxes.shape[1]):
            of_class, score = boxes[:, number], scores[:, number + 1]
            usable = (score > self.config.score_threshold) & (of_class[:, 2:] > of_class[:, :2]).all(dim=1)
            of_class, score = of_class[usable], score[usable]
            keep = nms(of_class, score, self.config.nms_threshold, -1, None)
            parts.append((of_class[keep], torch.full_like(keep, number), score[keep]))
        found, classes, best = (torch.cat(column) for column in zip(*parts))
        if self.config.max_predictions < best.shape[0]:
            order = torch.argsort(best, descending=True, stable=True)[: self.config.max_predictions]
            found, classes, best = found[order], classes[order], best[order]
        return found, classes, best


class PlainPredictor(Predictor[Panoptic]):
    """Predicts with a :class:`PlainNet`, and fuses with masks of the full image."""

    def result(self, prediction: ArrayPrediction, native_size: tuple[int, int]) -> Panoptic:
        """Make the result of an image, see the base class."""
        num_stuff = self.metadata.num_stuff
        return Panoptic.of_map(to_result(plain_fusion(prediction, num_stuff), native_size, num_stuff), self.metadata)


def plain_fusion(prediction: ArrayPrediction, num_stuff: int, min_stuff_area: int = 4096) -> FusedMap:
    """Fuse detections and classes with masks of the full image, see :func:`seamseg.fusion.fuse`."""
    masks, boxes = torch.as_tensor(prediction.mask_logits), torch.as_tensor(prediction.boxes)
    scores, classes = torch.as_tensor(prediction.scores), torch.as_tensor(prediction.classes)
    semantic = torch.as_tensor(prediction.semantic)
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[scores[order] > 0.5]
    ids, kept = paste_masks(masks[order], boxes[order], prediction.size)
    rows = order[kept]
    categories = [VOID, *(classes[rows] + num_stuff).tolist()]
    kept_scores, iscrowd = [0.0, *scores[rows].tolist()], [False] * (len(kept) + 1)
    for category in torch.unique(semantic).tolist():
        free = (semantic == category) & (ids == 0)
        if int(free.sum()) >= min_stuff_area:
            ids[free] = len(categories)
            categories.append(category)
            kept_scores.append(1.0)
            iscrowd.append(category >= num_stuff)
    return FusedMap(ids.cpu().numpy().astype(np.int32), categories, kept_scores, iscrowd)


def paste_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, list[int]]:
    """Sample every mask over the whole image; return the id map, and the rows of the masks on it.

    Parameters
    ----------
    masks, boxes : logits `D x h x w` and boxes `D x 4`, by decreasing score
    size : `(height, width)` of the image
    """
    height, width = size
    ids = torch.zeros(height, width, dtype=torch.long, device=masks.device)
    y = torch.arange(height, device=masks.device) + 0.5
    x = torch.arange(width, device=masks.device) + 0.5
    kept: list[int] = []
    for number, (mask, box) in enumerate(zip(masks, boxes)):
        rows, columns = (2 * (y - box[0]) / (box[2] - box[0]) - 1, 2 * (x - box[1]) / (box[3] - box[1]) - 1)
        grid = torch.stack((columns.expand(height, width), rows[:, None].expand(height, width)), -1)
        plane = functional.grid_sample(mask.sigmoid()[None, None], grid[None], align_corners=False)
        pixels = plane[0, 0] > 0.5
        taken = pixels & (ids != 0)
        if pixels.any() and taken.sum() / pixels.sum() <= 0.5 and not torch.equal(taken, pixels):
            kept.append(number)
            ids[pixels & ~taken] = len(kept)
    return ids, kept


class PlainTrainingModule(nn.Module):
    """A :class:`PlainNet` and its losses, with the semantic loss of the full image.

    Parameters
    ----------
    module : module whose network and losses it takes
    separated : see the module's description
    """

    def __init__(self, module: TrainingModule, separated: bool = False) -> None:
        super().__init__()
        assert isinstance(module.net, PanopticNet)
        self.net = plain_network(module.net, separated)

    def forward(self, batch: Batch) -> Losses:
        """Compute the losses of a batch, not weighted."""
        outputs = self.net(batch.images, batch)
        losses = self.net.loss(replace(outputs, semantic_logits=None), batch)
        ohem = self.net.options.semantic_loss.config.sem.ohem
        parts = []
        for logits, masks, categories in zip(outputs.semantic_logits, batch.masks, batch.categories):
            assert masks is not None and categories is not None
            target = semantic_target(masks, categories)
            parts.append(plain_semantic_loss(logits, outputs.features.padded_size, target, ohem or 1.0))
        count = torch.tensor(len(parts), dtype=torch.float64)
        means = {**losses.means, "sem_loss": torch.stack(parts).mean()}
        return Losses(means, {**losses.counts, "sem_loss": count})


def plain_semantic_loss(logits: Tensor, padded_size: tuple[int, int], target: Tensor, ohem: float) -> Tensor:
    """Return the mean cross-entropy of the hardest fraction `ohem` of the pixels, from the logits of all of them.

    Parameters
    ----------
    logits : `classes x h x w`
    padded_size : `(height, width)` to which they are enlarged
    target : int64 `H x W`, 255 void
    """
    full = functional.interpolate(logits[None], size=padded_size, mode="bilinear", align_corners=False)
    full = full[:, :, : target.shape[0], : target.shape[1]]
    losses = functional.cross_entropy(full, target[None], ignore_index=VOID, reduction="none").flatten()
    return losses.topk(math.ceil(losses.numel() * ohem)).values.mean()


def torch_poolings(network: nn.Module) -> nn.Module:
    """Replace the poolings of a network by those of torch, which keep their input."""
    for parent in network.modules():
        for name, child in parent.named_children():
            if isinstance(child, pooling.MaxPool3x3):
                setattr(parent, name, nn.MaxPool2d(child.kernel_size, child.stride, child.padding))
    return network


def _centres(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return the centres of the bins of intervals, `K x bins`."""
    step = (torch.arange(bins, device=low.device, dtype=low.dtype) + 0.5) / bins
    return low[:, None] + step * (high - low)[:, None]
