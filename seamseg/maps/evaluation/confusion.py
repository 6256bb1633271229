"""Confusion matrix of pixels and the IoU of the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from seamseg.maps.evaluation.scores import mean
from seamseg.maps.idmaps.histogram import ArrayLike, joint_histogram


class ConfusionMatrix:
    """Confusion matrix of pixels of the classes `0 .. num_classes-1`; any other label (255) is void.

    `counts` are `C x (C + 1)` int64; row = ground truth, column = prediction, the last column = predicted void. Void
    pixels of the ground truth are ignored. A pixel of class c that is predicted void is a false negative of c.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.counts = np.zeros((num_classes, num_classes + 1), np.int64)

    def add(self, gt_classes: ArrayLike, pred_classes: ArrayLike) -> None:
        """Add two class maps of the same shape."""
        pairs, counts = joint_histogram(gt_classes, pred_classes)
        self._add(pairs[:, 0], pairs[:, 1], counts)

    def add_pairs(
        self, pairs: np.ndarray, counts: np.ndarray, gt_class_of: Mapping[int, int], pred_class_of: Mapping[int, int]
    ) -> None:
        """Add two id maps, given their joint histogram and the classes of their ids; other ids are void."""
        void = self.num_classes
        gt = np.array([gt_class_of.get(i, void) for i in pairs[:, 0].tolist()], np.int64)
        pred = np.array([pred_class_of.get(i, void) for i in pairs[:, 1].tolist()], np.int64)
        self._add(gt, pred, counts)

    def _add(self, gt: np.ndarray, pred: np.ndarray, counts: np.ndarray) -> None:
        known = gt < self.num_classes
        np.add.at(self.counts, (gt[known], np.minimum(pred[known], self.num_classes)), counts[known])

    def merge(self, other: ConfusionMatrix) -> None:
        """Add the counts of another object."""
        self.counts += other.counts

    def without(self, part: ConfusionMatrix) -> ConfusionMatrix:
        """Return the counts if the predictions of `part`, some of the pixels, were void."""
        rest = ConfusionMatrix(self.num_classes)
        rest.counts = self.counts - part.counts
        rest.counts[:, -1] += part.counts.sum(axis=1)
        return rest

    def iou(self) -> np.ndarray:
        """Compute the IoU of each class, `C` float64; NaN for a class that is neither true nor predicted."""
        intersection = np.diagonal(self.counts)
        union = self.counts.sum(axis=1) + self.counts[:, :-1].sum(axis=0) - intersection
        with np.errstate(invalid="ignore"):
            iou: np.ndarray = intersection / union
        return iou

    def accuracy(self) -> float:
        """Compute the fraction of the pixels, without void, of correct class; NaN if there are none."""
        total = int(self.counts.sum())
        return int(np.diagonal(self.counts).sum()) / total if total else math.nan

    def miou(self) -> float:
        """Compute the mean IoU of the classes that occur."""
        return mean(self.iou().tolist())
