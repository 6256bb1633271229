"""Pixel-level scores of the Cityscapes benchmark: IoU and instance-weighted IoU (iIoU) of classes and categories.

- Pixels whose true label is not evaluated are ignored. A prediction of such a label elsewhere is a false negative.
- A category consists of its evaluated labels; confusions within a category are no errors.
- iIoU weights each true instance by the average size of its class divided by its own size: true positives and false
  negatives are sums of weighted pixels, false positives are plain pixels, since the predictions have no instances.
  Groups are not instances. iIoU is defined for thing classes and for categories of things only. In a category,
  predictions of labels that are not evaluated (caravan, trailer) count, too.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from seamseg.evaluation.cityscapes.scores import LabelScores, PixelScores
from seamseg.evaluation.scores import mean
from seamseg.formats.cityscapes.labels import (
    EVALUATED,
    INSTANCES_FROM,
    LABEL_OF,
    LABELS,
    LICENSE_PLATES,
    Label,
    label_of_instance,
)
from seamseg.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError

AVERAGE_SIZE = {
    "person": 3462.4756337644,
    "rider": 3930.4788056518,
    "car": 12794.0202738185,
    "truck": 27855.1264367816,
    "bus": 35732.1511111111,
    "train": 67583.7075812274,
    "motorcycle": 6298.7200839748,
    "bicycle": 4672.3249222261,
}
"""Average area in pixels of an instance of each class, published by the benchmark."""

_COUNT = len(LABELS)
_CATEGORIES = list(dict.fromkeys(label.category for label in EVALUATED))
_MEMBERS = {c: [label for label in LABELS if label.category == c] for c in _CATEGORIES}
_OF_INSTANCES = [c for c in _CATEGORIES if all(label.has_instances for label in _MEMBERS[c])]
_EVALUATED_IDS = np.array([label.id for label in EVALUATED])
_CATEGORY_OF = [label.category for label in LABELS]

Histogram = tuple[np.ndarray, np.ndarray]
"""Pairs of values, `K x 2`, and the pixels of each, `K`."""


class PixelLevel:
    """Pixel-level evaluation of a stream of frames; constant memory.

    Attributes
    ----------
    confusion : `34 x 34` pixels; row = true label id, column = predicted label id
    n_images : frames so far
    """

    def __init__(self) -> None:
        self.n_images = 0
        self.confusion = np.zeros((_COUNT, _COUNT), np.int64)
        self._classes = {label.name: _WeightedCounts() for label in EVALUATED if label.has_instances}
        self._categories = {c: _WeightedCounts() for c in _OF_INSTANCES}

    def add(self, label_ids: np.ndarray, instance_ids: np.ndarray, predicted: np.ndarray, name: str = "") -> None:
        """Add a frame.

        Parameters
        ----------
        label_ids, instance_ids : ground truth, `H x W`
        predicted : `H x W` label ids
        name : name of the frame, for errors

        Raises
        ------
        InputError
            if a map has an invalid label, or an instance of a class without instances
        """
        where = Path(name)
        labels = joint_histogram(label_ids, predicted)
        self.add_pairs(labels, joint_histogram(instance_ids, predicted), where, where, where)

    def add_pairs(
        self, labels: Histogram, instances: Histogram, labels_from: Path, instances_from: Path, predicted_from: Path
    ) -> None:
        """Add a frame like :meth:`add`, given the joint histograms of both true maps with the predicted one.

        Parameters
        ----------
        labels, instances : true value first
        labels_from, instances_from, predicted_from : files of the maps, for errors
        """
        pairs, counts = labels
        true = np.where(pairs[:, 0] == LICENSE_PLATES["labelIds"], 0, pairs[:, 0])
        _check_labels(true, labels_from, "")
        _check_labels(
            pairs[:, 1], predicted_from, "; predictions have the label ids 0 to 33 (7 road ... 33 bicycle), 0 for none"
        )
        np.add.at(self.confusion, (true, pairs[:, 1]), counts)
        self._add_instances(*instances, instances_from)
        self.n_images += 1

    def _add_instances(self, pairs: np.ndarray, counts: np.ndarray, path: Path) -> None:
        values, index = np.unique(pairs[:, 0], return_inverse=True)
        labels = label_of_instance(values, path)
        for k in np.flatnonzero(values >= INSTANCES_FROM):
            label = LABEL_OF[int(labels[k])]
            if not label.evaluated:
                continue
            if label.name not in AVERAGE_SIZE:
                raise InputError(f"{path}: {values[k]} is an instance of {label.name}, a class without instances")
            selected = index == k
            predicted, pixels = pairs[selected, 1], counts[selected]
            size = int(pixels.sum())
            weight = AVERAGE_SIZE[label.name] / size
            self._classes[label.name].add(int(pixels[predicted == label.id].sum()), size, weight)
            if label.category in self._categories:
                members = [m.id for m in _MEMBERS[label.category]]
                shared = int(pixels[np.isin(predicted, members)].sum())
                self._categories[label.category].add(shared, size, weight)

    def scores(self) -> PixelScores:
        """Compute the scores of all frames so far."""
        classes = [self._class_scores(label) for label in EVALUATED]
        categories = [self._category_scores(c) for c in _CATEGORIES]
        return PixelScores(
            IoU=mean(c.IoU for c in classes),
            iIoU=mean(c.iIoU for c in classes),
            category_IoU=mean(c.IoU for c in categories),
            category_iIoU=mean(c.iIoU for c in categories),
            n_images=self.n_images,
            classes=classes,
            categories=categories,
        )

    def _class_scores(self, label: Label) -> LabelScores:
        hits = int(self.confusion[label.id, label.id])
        false = int(self.confusion[_EVALUATED_IDS, label.id].sum()) - hits
        iou = _ratio(hits, int(self.confusion[label.id].sum()) + false)
        weighted = self._classes.get(label.name)
        return LabelScores(label.name, iou, math.nan if weighted is None else weighted.iou(false))

    def _category_scores(self, category: str) -> LabelScores:
        members = [label.id for label in _MEMBERS[category]]
        evaluated = [i for i in members if LABEL_OF[i].evaluated]
        others = [i for i in _EVALUATED_IDS if _CATEGORY_OF[i] != category]
        hits = int(self.confusion[np.ix_(evaluated, evaluated)].sum())
        true = int(self.confusion[evaluated].sum())
        iou = _ratio(hits, true + int(self.confusion[np.ix_(others, evaluated)].sum()))
        weighted = self._categories.get(category)
        false = int(self.confusion[np.ix_(others, members)].sum())
        return LabelScores(category, iou, math.nan if weighted is None else weighted.iou(false))


class _WeightedCounts:
    """Weighted pixels of true instances."""

    def __init__(self) -> None:
        self.hits = 0.0
        self.misses = 0.0

    def add(self, hits: int, size: int, weight: float) -> None:
        self.hits += hits * weight
        self.misses += (size - hits) * weight

    def iou(self, false: int) -> float:
        return _ratio(self.hits, self.hits + self.misses + false)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _check_labels(values: np.ndarray, path: Path, hint: str) -> None:
    wrong = values[values >= _COUNT]
    if len(wrong):
        raise InputError(f"{path}: {wrong[0]} is not a Cityscapes label id{hint}")
