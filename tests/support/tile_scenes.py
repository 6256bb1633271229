"""Scenes of flat colours and a network that reads them, pixel by pixel and object by object."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from seamseg.maps.predictions import Prediction
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.ops.labels import extract_boxes
from seamseg.structures import PackedSequence
from support.predictors import StandIn
from support.sections import roi

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
STUFF = 3
CELLS = 28
STEP = 40
Box = tuple[int, int, int, int]


def scene(size: tuple[int, int], boxes: list[Box], rng: np.random.Generator) -> np.ndarray:
    """`H x W x 3` uint8: red is a random stuff class in blotches; blue says that there is one of up to six objects,
    green which one, as a part of blue: so that pixels can be blended with those around it."""
    height, width = size
    blotches = rng.integers(0, STUFF, (height // 7 + 1, width // 7 + 1))
    rgb = np.zeros((height, width, 3), np.uint8)
    rgb[..., 0] = np.kron(blotches, np.ones((7, 7), int))[:height, :width]
    for number, (y0, x0, y1, x1) in enumerate(boxes, 1):
        rgb[y0:y1, x0:x1, 1:] = number * STEP, 240
    return rgb


class SceneNet(StandIn):
    """Sees what :func:`scene` drew, but no objects with a side shorter than `least`; fails above `room` pixels."""

    def __init__(self, least: int = 1, room: int | None = None, error: Exception = NO_MEMORY) -> None:
        super().__init__()
        self.options = SimpleNamespace(selector=DetectionSelector(roi()), run_dense=None)
        self.nms_threshold = roi().nms_threshold
        self.least = least
        self.room, self.error = room, error
        self.sizes: list[tuple[int, int]] = []

    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction]:
        if self.room is not None and sum(i.shape[-2] * i.shape[-1] for i in images) > self.room:
            raise self.error
        return [self._see(image) for image in images]

    def _see(self, image: Tensor) -> Prediction:
        red, green, blue = image * 255
        ids = torch.where(blue > 120, (green / blue.clamp(min=1) * (240 / STEP)).round(), 0).long()
        self.sizes.append((int(image.shape[-2]), int(image.shape[-1])))
        boxes = extract_boxes(ids, 7)[1:]
        sides = boxes[:, 2:] - boxes[:, :2]
        boxes = boxes[(boxes[:, 0] >= 0) & (sides >= self.least).all(1)]
        count = boxes.shape[0]
        return Prediction(
            boxes,
            torch.zeros(count, dtype=torch.long),
            torch.full((count,), 0.9),
            torch.full((count, CELLS, CELLS), 9.0),
            red.round().long(),
            self.sizes[-1],
        )
