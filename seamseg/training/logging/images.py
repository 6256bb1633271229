"""Sample pictures of a training for TensorBoard: inputs with their targets, proposals and predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.evaluation.segments import gt_segments_from_instances
from seamseg.formats.metadata import Metadata
from seamseg.idmaps.resize import resize_nearest
from seamseg.models.panoptic import PanopticNet
from seamseg.panoptic_map import PanopticResult, Segment
from seamseg.structures import Batch, PackedSequence
from seamseg.validation.validator import Judged
from seamseg.visualize.overlay import draw_boxes, draw_overlay

_LONGEST = 640
"""Longest side of a panel in pixels, so that event files stay small."""

_PROPOSALS = 50


@dataclass(frozen=True)
class Artist:
    """Draws for one data set.

    Parameters
    ----------
    metadata : classes and colours
    config : its normalisation
    """

    metadata: Metadata
    config: Config

    def photo(self, image: Tensor) -> np.ndarray:
        """The `H x W x 3` uint8 picture of a normalised image `3 x H x W`."""
        options = self.config.dataloader
        mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (options.rgb_mean, options.rgb_std))
        pixels = (image.detach().cpu().float() * std + mean) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()

    def targets(self, batch: Batch, index: int = 0) -> np.ndarray:
        """An image of a training batch under its segments, things in boxes."""
        image, mask, cat, crowd, boxes = (
            getattr(batch, name)[index] for name in ("images", "masks", "categories", "iscrowd", "boxes")
        )
        photo = self.photo(image)
        picture = self._overlay(photo, self._truth(mask.cpu().numpy(), cat.tolist(), crowd.tolist(), batch.ids[index]))
        things = ((cat >= self.metadata.num_stuff) & (cat < self.metadata.num_classes) & ~crowd.bool()).cpu()
        return _shrunk(
            draw_boxes(picture, boxes.cpu().numpy()[things], cat.cpu().numpy()[things], self.metadata.palette)
        )

    def triptych(self, sample: Sample, proposals: Tensor | None) -> np.ndarray:
        """A validation image side by side: with the best proposals, under its truth, under the prediction."""
        photo = self.photo(sample.image)
        first = photo if proposals is None else draw_boxes(photo, proposals[:_PROPOSALS].cpu().numpy(), width=1)
        truth = self._truth(sample.mask, sample.cat, sample.iscrowd, sample.id)
        panels = [first, self._overlay(photo, truth), self._overlay(photo, sample.result)]
        return np.concatenate([_shrunk(p) for p in panels], axis=1)

    def _truth(self, mask: np.ndarray, cat: list[int], iscrowd: list[int], name: str) -> PanopticResult:
        ids, infos = gt_segments_from_instances(mask, cat, iscrowd, self.metadata.num_stuff, name)
        segments = [
            Segment(
                s.id, s.category, self.metadata.is_thing(s.category), None, int(s.area or 0), (0, 0, 0, 0), s.iscrowd
            )
            for s in infos
        ]
        return PanopticResult(ids.astype(np.int32), segments)

    def _overlay(self, photo: np.ndarray, result: PanopticResult) -> np.ndarray:
        return draw_overlay(photo, result, self.metadata.palette, self.metadata.categories)


@dataclass(frozen=True)
class Sample:
    """A validation image kept for its picture; `mask` and `result` are at network size."""

    id: str
    image: Tensor
    mask: np.ndarray
    cat: list[int]
    iscrowd: list[int]
    result: PanopticResult


@dataclass
class SampleCollector:
    """Observer of a validation that keeps its first images.

    Parameters
    ----------
    wanted : number of images
    """

    wanted: int = 4
    samples: list[Sample] = field(default_factory=list)

    def __call__(self, judged: Judged) -> None:
        """Keep an image, as :data:`seamseg.validation.validator.Observer`."""
        if len(self.samples) >= self.wanted:
            return
        item, result, size = judged.item, judged.result, judged.prediction.size
        small = PanopticResult(resize_nearest(result.id_map, size), result.segments)
        mask = resize_nearest(item.mask.numpy(), size)
        self.samples.append(Sample(item.id, item.image, mask, list(item.cat), list(item.iscrowd), small))


def best_proposals(net: PanopticNet, image: Tensor) -> Tensor | None:
    """The proposals for one image on the network's device, best first; the network must be in evaluation mode."""
    with torch.inference_mode():
        features = net.encode(PackedSequence([image]))
        anchors, obj_logits, bbx_logits = net.score_anchors(features)
        return net.proposals(obj_logits, bbx_logits, anchors, features.valid_sizes, False)[0]


def _shrunk(picture: np.ndarray) -> np.ndarray:
    height, width = picture.shape[:2]
    scale = _LONGEST / max(height, width)
    if scale >= 1:
        return picture
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BILINEAR))
