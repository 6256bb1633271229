"""Which class is predicted where which class is true, pixel by pixel, and the IoU of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from seamseg.evaluation.scores import mean
from seamseg.idmaps.histogram import joint_histogram

if TYPE_CHECKING:
    from torch import Tensor


class ConfusionMatrix:
    """Exact pixel counts.

    Pixels whose ground truth is void do not count. A pixel of class c that is predicted void is missing from class c.

    Parameters
    ----------
    num_classes : classes are `0 .. num_classes-1`; any other label (255) is void

    Attributes
    ----------
    counts : `C x (C + 1)` int64; row = ground truth, column = prediction, the last column = predicted void
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.counts = np.zeros((num_classes, num_classes + 1), np.int64)

    def add(self, gt_classes: np.ndarray | Tensor, pred_classes: np.ndarray | Tensor) -> None:
        """Count the pixels of two maps of classes of the same shape."""
        pairs, counts = joint_histogram(gt_classes, pred_classes)
        self._add(pairs[:, 0], pairs[:, 1], counts)

    def add_pairs(
        self, pairs: np.ndarray, counts: np.ndarray, gt_class_of: Mapping[int, int], pred_class_of: Mapping[int, int]
    ) -> None:
        """Count from the joint histogram of two id maps; ids that a mapping lacks are void."""
        void = self.num_classes
        gt = np.array([gt_class_of.get(i, void) for i in pairs[:, 0].tolist()], np.int64)
        pred = np.array([pred_class_of.get(i, void) for i in pairs[:, 1].tolist()], np.int64)
        self._add(gt, pred, counts)

    def _add(self, gt: np.ndarray, pred: np.ndarray, counts: np.ndarray) -> None:
        known = gt < self.num_classes
        np.add.at(self.counts, (gt[known], np.minimum(pred[known], self.num_classes)), counts[known])

    def merge(self, other: ConfusionMatrix) -> None:
        """Add what another object has counted."""
        self.counts += other.counts

    def state_tensor(self) -> Tensor:
        """The counts as one int64 vector, to be summed over processes."""
        import torch  # scoring files does without

        return torch.from_numpy(self.counts.ravel().copy())

    def load_state_tensor(self, state: Tensor) -> None:
        """Replace the counts; the inverse of :meth:`state_tensor`."""
        values = state.detach().cpu().numpy()
        self.counts = values.reshape(self.num_classes, self.num_classes + 1).astype(np.int64)

    def iou(self) -> np.ndarray:
        """IoU of each class, `C` float64; NaN for a class that is nowhere, neither true nor predicted."""
        shared = np.diagonal(self.counts)
        union = self.counts.sum(axis=1) + self.counts[:, :-1].sum(axis=0) - shared
        with np.errstate(invalid="ignore"):
            return shared / union

    def miou(self) -> float:
        """Mean IoU of the classes that are somewhere."""
        return mean(self.iou().tolist())
