"""Panoptic quality over a stream of images: constant memory, bit-identical for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.evaluation.matching import Matches, SegmentPair, match_segments, set_void
from seamseg.maps.evaluation.scores import ClassScores, PanopticScores, mean
from seamseg.maps.panoptic_map import VOID_ID, ClassInfo, SegmentInfo, Segments
from seamseg.utils.errors import InputError

# Rows of the state. An IoU above one half is a multiple of 2^-53, so sums of IoUs are stored as integers in this unit,
# in two halves that cannot overflow: addition is exact, and its order does not matter.
_TP, _FP, _FN, _IOU, _OVERLAPPING_IOU = 0, 1, 2, 3, 5
_ROWS = 7
_UNIT_BITS, _LOW_BITS = 53, 27


class PanopticQuality:
    """Counts of true positives, false positives and false negatives of each class (docs/contract.md, section 4)."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.n_images = 0
        self._state = np.zeros((_ROWS, num_classes), np.int64)

    def add_pairs(
        self, pairs: np.ndarray, counts: np.ndarray, gt_segments: Segments, pred_segments: Segments, name: str = ""
    ) -> Matches:
        """Match the segments of an image, see :func:`.matching.match_segments`, and count them."""
        for kind, listed in (("ground-truth", gt_segments), ("predicted", pred_segments)):
            for s in listed:
                if not 0 <= s.category < self.num_classes:
                    known = f"classes are 0 to {self.num_classes - 1}"
                    raise InputError(f"image {name}: {kind} segment {s.id} has class {s.category}; {known}")
        matches = match_segments(pairs, counts, gt_segments, pred_segments, name)
        state = self._state
        for row, segments in ((_TP, matches.matched), (_FP, matches.false_positives), (_FN, matches.false_negatives)):
            np.add.at(state[row], np.array([s.category for s in segments], np.int64), 1)
        _add_exactly(state[_IOU : _IOU + 2], matches.matched)
        _add_exactly(state[_OVERLAPPING_IOU : _OVERLAPPING_IOU + 2], matches.overlapping)
        self.n_images += 1
        return matches

    def state(self) -> np.ndarray:
        """Return the counts as one int64 vector, to be summed over processes for :meth:`load_state`."""
        return np.append(self._state.ravel(), self.n_images)

    def load_state(self, state: np.ndarray) -> None:
        """Replace the counts; the inverse of :meth:`state`."""
        self._state = state[:-1].reshape(_ROWS, self.num_classes).copy()
        self.n_images = int(state[-1])

    def result(self, classes: Sequence[ClassInfo], ious: Sequence[float]) -> PanopticScores:
        """Compute the scores of all images so far; the pixel IoU of each class is not counted here."""
        return average_classes([self._scores(c, info, ious[c]) for c, info in enumerate(classes)], self.n_images)

    def mean_iou(self, ious: Sequence[float]) -> float:
        """Return the mean of the pixel IoUs of the classes, without NaN."""
        return mean(ious)

    def _scores(self, index: int, info: ClassInfo, iou: float) -> ClassScores:
        column = self._state[:, index].tolist()
        tp, fp, fn = column[_TP], column[_FP], column[_FN]
        total = _total(column[_IOU], column[_IOU + 1])
        pq = sq = rq = dagger = math.nan
        if tp + fp + fn > 0:
            rq = tp / (tp + 0.5 * fp + 0.5 * fn)
            sq = total / tp if tp else 0.0
            pq = total / (tp + 0.5 * fp + 0.5 * fn)
        if info.isthing:
            dagger = pq
        elif tp + fn > 0:
            dagger = _total(column[_OVERLAPPING_IOU], column[_OVERLAPPING_IOU + 1]) / (tp + fn)
        return ClassScores(info, pq, sq, rq, dagger, iou, tp, fp, fn)


class LegacyPanopticQuality(PanopticQuality):
    """Panoptic quality as counted by the original program (`seamseg evaluate --legacy-metrics`).

    Differences from the official definition:

    - a crowd is void for every class, not only for its own;
    - a listed instance without a pixel (resizing can remove it) is a false negative;
    - stuff segments of one class are not merged;
    - an absent class counts as 0 in the means of PQ, SQ and RQ, and makes mIoU NaN.
    """

    def add_pairs(
        self, pairs: np.ndarray, counts: np.ndarray, gt_segments: Segments, pred_segments: Segments, name: str = ""
    ) -> Matches:
        """Compare the two maps of an image; see :meth:`PanopticQuality.add_pairs`."""
        if any(s.id == VOID_ID for s in pred_segments):
            raise InputError(f"image {name}: the prediction has a segment with id 0, which the original takes for void")
        pairs = set_void(pairs, 0, [s.id for s in gt_segments if s.iscrowd])
        pairs = set_void(pairs, 1, [s.id for s in pred_segments if s.iscrowd])
        visible = set(pairs[:, 1].tolist())
        gt = [SegmentInfo(s.id, s.category) for s in gt_segments if not s.iscrowd]  # areas are counted
        pred = [s for s in pred_segments if not s.iscrowd and s.id in visible]
        return super().add_pairs(pairs, counts, gt, pred, name)

    def result(self, classes: Sequence[ClassInfo], ious: Sequence[float]) -> PanopticScores:
        """Compute the scores of all images so far; absent classes count as 0."""
        official = super().result(classes, ious)
        per_class = []
        for c in official.per_class:
            pq, sq, rq, dagger = (0.0 if math.isnan(v) else v for v in (c.PQ, c.SQ, c.RQ, c.PQ_dagger))
            per_class.append(replace(c, PQ=pq, SQ=sq, RQ=rq, PQ_dagger=dagger))
        scores = average_classes(per_class, self.n_images)
        miou = self.mean_iou(ious)
        return replace(scores, mIoU=miou, mIoU_segments=miou)

    def mean_iou(self, ious: Sequence[float]) -> float:
        """Return the mean of the pixel IoUs of the classes, NaN if one is NaN."""
        return math.fsum(ious) / len(ious) if ious else math.nan


def average_classes(per_class: Sequence[ClassScores], n_images: int) -> PanopticScores:
    """Average over the classes, without NaN; the IoU of a class stands for its segments, too."""
    things = [c for c in per_class if c.info.isthing]
    stuff = [c for c in per_class if not c.info.isthing]
    means: dict[str, Any] = {
        f"{key}{suffix}": mean(getattr(c, key) for c in group)
        for suffix, group in (("", per_class), ("_things", things), ("_stuff", stuff))
        for key in ("PQ", "SQ", "RQ")
    }
    iou = mean(c.IoU for c in per_class)
    dagger = mean(c.PQ_dagger for c in per_class)
    per_class = list(per_class)
    return PanopticScores(
        **means, PQ_dagger=dagger, mIoU=iou, mIoU_segments=iou, n_images=n_images, per_class=per_class
    )


def check_sizes(gt_shape: Sequence[int], pred_shape: Sequence[int], where: str | Path) -> None:
    """Raise InputError if the sizes of two maps differ; `where` is the image or the predicted file."""
    if tuple(gt_shape) != tuple(pred_shape):
        gt, pred = (" x ".join(str(n) for n in reversed(shape)) for shape in (gt_shape, pred_shape))
        raise InputError(
            f"{where}: the prediction is {pred} pixels (width x height), its ground truth {gt}; "
            "predict at the image's own size"
        )


def _add_exactly(halves: np.ndarray, pairs: Sequence[SegmentPair]) -> None:
    for pair in pairs:
        units = round(math.ldexp(pair.iou, _UNIT_BITS))
        halves[0, pair.category] += units >> _LOW_BITS
        halves[1, pair.category] += units & ((1 << _LOW_BITS) - 1)


def _total(high: int, low: int) -> float:
    return ((high << _LOW_BITS) + low) / (1 << _UNIT_BITS)
