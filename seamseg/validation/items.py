"""The images of a split as a validation reads them, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.data.input_size import InputSize
from seamseg.inference.images import network_input
from seamseg.inference.results.base import ImageResult
from seamseg.maps.evaluation.evaluator import Comparison, PanopticEvaluator
from seamseg.maps.evaluation.scores import Scores
from seamseg.maps.folder import ReadMap
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import ArrayPrediction


@dataclass(frozen=True)
class ValidationItem:
    """An image of a split: network input `H x W x 3` uint8, instance ids `L x h x w` at native size, their classes.

    `maps` has the ground truth of `Metric.reads`, `channels x h x w` float32. `result` is for metrics, see
    :class:`ValidationResult`; otherwise None.
    """

    id: str
    pixels: np.ndarray
    mask: Tensor
    cat: Sequence[int]
    iscrowd: Sequence[int]
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)
    result: ImageResult | None = None

    @property
    def native_size(self) -> tuple[int, int]:
        """Native size `(h, w)` of the image."""
        return int(self.mask.shape[-2]), int(self.mask.shape[-1])


@dataclass(frozen=True)
class ValidationResult:
    """An image with its prediction and its ground truth, as a validation passes it to an :data:`Observer`.

    The prediction is the network's own, in its classes. `result` is what is scored, at native size and in the classes
    of the data set: the panoptic map, the class map, or, for custom metrics only, the detections that count.
    """

    item: ValidationItem
    prediction: ArrayPrediction
    result: Any


@dataclass(frozen=True)
class PanopticValidation(ValidationResult):
    """An image of a panoptic validation, with the match of the segments and the counts of this image only."""

    result: PanopticResult
    comparison: Comparison
    counts: PanopticEvaluator


Observer = Callable[[Any], None]
"""Called with the :class:`ValidationResult` of each image of this process."""


class Scorer(Protocol):
    """Accumulates the scores of a validation, with the life cycle of a :class:`seamseg.maps.evaluation.metric.Metric`.

    The scorers of the package have `result`, the type of the results that they score, `of_maps`, whether these are
    panoptic maps, and `of_things`, whether stuff does not count.
    """

    gathered: bool

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> ValidationResult:
        """Add an image of this process."""

    def state(self) -> np.ndarray | list[Any]:
        """Return counts or entries of the images of this process."""

    def scores(self, state: Any) -> Scores:
        """Return the scores from the counts or entries of all processes."""


@dataclass(frozen=True)
class ValidationTransform:
    """Transforms the image as in prediction and leaves the ground truth unchanged."""

    size: InputSize
    maps: Mapping[str, ReadMap]

    def __call__(
        self, image: Image.Image, mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], rng: Random | None
    ) -> dict[str, Any]:
        """See :class:`seamseg.data.dataset.Transform`."""
        # a tensor, which the processes of a loader share
        pixels = torch.from_numpy(network_input(image, self.size))
        return {"img": pixels, "msk": torch.from_numpy(mask), "cat": cat, "iscrowd": iscrowd}


def item_of(data: Any) -> ValidationItem:
    """Return the item of what a :class:`ValidationTransform` has made."""
    maps = {name: values.numpy() for name, values in data.get("maps", {}).items()}
    return ValidationItem(data["id"], data["img"].numpy(), data["msk"], data["cat"], data["iscrowd"], maps)
