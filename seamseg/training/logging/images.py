"""Sample images of a training for callbacks: inputs with their targets and predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from seamseg.config import Config
from seamseg.inference.options import InferenceOptions
from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import PanopticResult, Segment, class_map_result
from seamseg.maps.visualize.detections import draw_detections
from seamseg.maps.visualize.maps import draw_map
from seamseg.maps.visualize.overlay import draw_boxes, draw_overlay
from seamseg.results import Detections
from seamseg.structures import Batch
from seamseg.training.prefetch import TrainingBatch, prepare_batch
from seamseg.validation.validator import PanopticValidation, ValidationResult

_MAX_SIDE = 640
"""Longest side of a panel in pixels, which bounds the size of event files."""


@dataclass
class SampleCollector:
    """Observer of a validation that keeps its first images."""

    wanted: int = 4
    samples: list[ValidationResult] = field(default_factory=list)

    def __call__(self, validated: ValidationResult) -> None:
        """Keep an image; see :data:`seamseg.validation.validator.Observer`."""
        if len(self.samples) < self.wanted:
            self.samples.append(replace(validated, prediction=validated.prediction.on_cpu()))


@dataclass(frozen=True)
class SampleRenderer:
    """Draws the sample images of a training."""

    metadata: Metadata
    config: Config

    def targets(self, batch: TrainingBatch) -> np.ndarray:
        """Draw the first image of a batch, as it was loaded, with its segments and boxes: uint8 `H x W x 3`."""
        assert isinstance(batch, Batch)
        batch = prepare_batch(batch, self.config.dataloader)
        image, mask, cat, crowd, boxes = (
            getattr(batch, name)[0] for name in ("images", "masks", "categories", "iscrowd", "boxes")
        )
        options = self.config.dataloader
        mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (options.rgb_mean, options.rgb_std))
        pixels = ((image.detach().cpu().float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        rgb = pixels.permute(1, 2, 0).contiguous().numpy()
        drawn = self._overlay(rgb, self._truth(mask.cpu().numpy(), cat.tolist(), crowd.tolist(), batch.ids[0]))
        things = ((cat >= self.metadata.num_stuff) & (cat < self.metadata.num_classes) & ~crowd.bool()).cpu().numpy()
        return _shrunk(draw_boxes(drawn, boxes.cpu().numpy()[things], cat.cpu().numpy()[things], self.metadata.palette))

    def validation(self, net: Any, collector: SampleCollector) -> Iterator[tuple[str, np.ndarray]]:
        """Draw the kept images of a validation of a network, each with its tag."""
        for number, sample in enumerate(collector.samples):
            yield f"val/{number}_target_prediction", self.panels(sample)
            for name, spec in net.map_formats.items():
                values = sample.prediction.maps[name]
                yield f"val/{number}_map_{name}", _shrunk(draw_map(values, spec, sample.prediction.size))

    def panels(self, sample: ValidationResult) -> np.ndarray:
        """Draw a validation image twice side by side: with ground truth, and with the prediction."""
        item, rgb = sample.item, sample.item.pixels
        mask = resize_nearest(item.mask.numpy(), sample.prediction.size)
        truth = self._truth(mask, list(item.cat), list(item.iscrowd), item.id)
        panels = [self._overlay(rgb, truth), self._predicted(rgb, sample)]
        return np.concatenate([_shrunk(p) for p in panels], axis=1)

    def _predicted(self, rgb: np.ndarray, sample: ValidationResult) -> np.ndarray:
        prediction, size = sample.prediction, sample.prediction.size
        if isinstance(sample, PanopticValidation):
            result = sample.result
            return self._overlay(rgb, PanopticResult(resize_nearest(result.id_map, size), result.segments))
        if prediction.semantic is not None:
            return self._overlay(rgb, class_map_result(prediction.semantic))
        found = Detections.of(prediction, size, self.metadata, InferenceOptions().thresholds(self.config))
        return draw_detections(rgb, found, size, self.metadata.palette)

    def _truth(self, mask: np.ndarray, cat: list[int], iscrowd: list[int], name: str) -> PanopticResult:
        ids, infos = gt_segments_from_instances(mask, cat, iscrowd, self.metadata.num_stuff, name)
        nowhere = (0, 0, 0, 0)
        segments = [
            Segment(s.id, s.category, self.metadata.is_thing(s.category), None, int(s.area or 0), nowhere, s.iscrowd)
            for s in infos
        ]
        return PanopticResult(ids.astype(np.int32), segments)

    def _overlay(self, rgb: np.ndarray, result: PanopticResult) -> np.ndarray:
        return np.asarray(draw_overlay(rgb, result, self.metadata.palette, self.metadata.categories))


def _shrunk(rgb: np.ndarray) -> np.ndarray:
    height, width = rgb.shape[:2]
    scale = _MAX_SIDE / max(height, width)
    if scale >= 1:
        return rgb
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BILINEAR))
