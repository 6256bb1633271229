"""Instance-level average precision of the Cityscapes benchmark.

Per class and IoU threshold t (.5, .55 ... .95):

- A prediction matches a true instance if their IoU is above t. If several predictions match one instance, the one with
  the highest score is a true positive and the others are false positives.
- A prediction without a match is a false positive, unless more than the fraction t of it lies on ignored regions: void,
  groups of its class, instances of its class that are too small (under 100 pixels). Predictions that match a group or a
  small instance are ignored. Void is what `instanceIds` has for labels that are not evaluated; single caravans and
  trailers are not void.
- Precision is integrated over recall stepwise, each step reaching halfway to the neighbouring points.

With distances there are also averages over instances of at least 1000 pixels up to 100 m and 50 m away.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seamseg.evaluation.cityscapes.scores import AP_KEYS, InstanceClassScores, InstanceLevelScores
from seamseg.evaluation.scores import mean
from seamseg.formats.cityscapes.instance_files import Patch
from seamseg.formats.cityscapes.labels import EVALUATED, INSTANCES_FROM, LABELS, LICENSE_PLATES, label_of_instance

THRESHOLDS = np.arange(0.5, 1.0, 0.05)
"""Thresholds of the IoU; with the rounding errors of the benchmark, since an IoU of exactly .6 is possible."""

_CLASSES = [label for label in EVALUATED if label.has_instances]
_IDS = {label.id for label in _CLASSES}
_VOID = [*(label.id for label in LABELS if not label.evaluated), LICENSE_PLATES["instanceIds"]]


@dataclass(frozen=True)
class InstanceFilter:
    """Limits of the evaluated instances: size in pixels, distance in metres, fraction of pixels with a distance."""

    min_pixels: int
    max_distance: float
    min_known: float


FILTERS = (InstanceFilter(100, math.inf, -math.inf), InstanceFilter(1000, 100, 0.5), InstanceFilter(1000, 50, 0.5))
"""Without distances only the first is evaluated."""

Distances = Mapping[int, tuple[float, float]]
"""Median distance in metres, and the fraction of the pixels with a known distance, by instance id."""


@dataclass(frozen=True)
class TrueInstance:
    """An instance of the ground truth, or a group (id below 1000)."""

    id: int
    pixels: int
    distance: float = -1.0
    known: float = 0.0

    @property
    def isgroup(self) -> bool:
        """Whether it is a group of objects."""
        return self.id < INSTANCES_FROM

    def passes(self, limits: InstanceFilter) -> bool:
        """Whether it is large and close enough."""
        return (
            self.pixels >= limits.min_pixels and self.distance <= limits.max_distance and self.known >= limits.min_known
        )


@dataclass(frozen=True)
class PredictionOverlaps:
    """A prediction: its pixels, those on void, and those on each true instance of its class, by list index."""

    score: float
    pixels: int
    void: int
    shared: Mapping[int, int]


@dataclass(frozen=True)
class FrameOverlaps:
    """True instances and predictions of one frame, by label id."""

    ground_truth: Mapping[int, Sequence[TrueInstance]]
    predictions: Mapping[int, Sequence[PredictionOverlaps]]


def overlaps_of_frame(
    instance_ids: np.ndarray,
    predictions: Iterable[tuple[int, float, Patch]],
    distances: Distances | None = None,
    path: Path = Path(),
) -> FrameOverlaps:
    """Count the overlaps of the predictions of a frame with its ground truth.

    Parameters
    ----------
    instance_ids : `instanceIds` of the ground truth, `H x W`
    predictions : label id, confidence and mask of each, of the size of the map; one mask is held at a time. The labels
        must be evaluated, see :func:`is_evaluated`
    distances : distances of the true instances, None if unknown
    path : path of the ground truth, for errors

    Raises
    ------
    InputError
        if a value of the ground truth does not belong to a Cityscapes label
    """
    values, sizes = _count(instance_ids)
    ground_truth: dict[int, list[TrueInstance]] = {i: [] for i in _IDS}
    index: dict[int, int] = {}
    labels = label_of_instance(np.array(values), path).tolist()
    for value, label, pixels in zip(values, labels, sizes):
        if label in _IDS:
            index[value] = len(ground_truth[label])
            known = {} if distances is None else distances
            ground_truth[label].append(TrueInstance(value, pixels, *known.get(value, (-1.0, 0.0))))
    label_of = dict(zip(values, labels))
    overlaps: dict[int, list[PredictionOverlaps]] = {i: [] for i in _IDS}
    for label, score, patch in predictions:
        height, width = patch.inside.shape
        covered = instance_ids[patch.top : patch.top + height, patch.left : patch.left + width][patch.inside]
        if not len(covered):
            continue
        counts = dict(zip(*_count(covered)))
        shared = {index[v]: n for v, n in counts.items() if v in index and label_of[v] == label}
        void = sum(counts.get(v, 0) for v in _VOID)
        overlaps[label].append(PredictionOverlaps(score, len(covered), void, shared))
    return FrameOverlaps(ground_truth, overlaps)


def is_evaluated(label: int) -> bool:
    """Whether predictions of a label are evaluated."""
    return label in _IDS


class InstanceLevel:
    """Instance-level evaluation of a stream of frames; keeps one number per prediction and threshold.

    Parameters
    ----------
    distances : whether the distances of true instances are known
    """

    def __init__(self, distances: bool = False) -> None:
        self.n_images = 0
        self._curves = {
            (limits, label.id): [_Curve() for _ in THRESHOLDS]
            for limits in (FILTERS if distances else FILTERS[:1])
            for label in _CLASSES
        }

    def add(self, frame: FrameOverlaps) -> None:
        """Add a frame."""
        for (limits, label), curves in self._curves.items():
            ground_truth, predictions = frame.ground_truth[label], frame.predictions[label]
            if ground_truth or predictions:
                _add_to_curves(ground_truth, predictions, limits, curves)
        self.n_images += 1

    def scores(self) -> InstanceLevelScores:
        """Compute the scores of all frames so far."""
        classes = []
        for label in _CLASSES:
            rows = [self._precisions(limits, label.id) for limits in FILTERS]
            ap, ap_100m, ap_50m = (sum(row) / len(row) for row in rows)
            classes.append(InstanceClassScores(label.name, ap, rows[0][0], ap_100m, ap_50m, rows[2][0]))
        means = {key: mean(getattr(c, key) for c in classes) for key in AP_KEYS}
        return InstanceLevelScores(**means, n_images=self.n_images, classes=classes)

    def _precisions(self, limits: InstanceFilter, label: int) -> list[float]:
        curves = self._curves.get((limits, label))
        return [math.nan] * len(THRESHOLDS) if curves is None else [curve.average() for curve in curves]


class _Curve:
    """Scores of the true and false positives of a class at a threshold, and the number of false negatives."""

    def __init__(self) -> None:
        self.true_positives, self.false_positives = array("d"), array("d")
        self.false_negatives = 0

    def average(self) -> float:
        """Compute the average precision; NaN without true instances, 0 without true positives."""
        count = len(self.true_positives) + self.false_negatives
        if not count:
            return math.nan
        true, false = np.sort(self.true_positives), np.sort(self.false_positives)
        thresholds = np.unique(np.concatenate([true, false]))
        tp = len(true) - np.searchsorted(true, thresholds)
        positives = tp + len(false) - np.searchsorted(false, thresholds)
        recall = np.concatenate([tp / count, [0.0]])
        # the curve ends at precision 1 and recall 0
        precision = np.concatenate([tp / positives, [1.0]])
        before, after = np.concatenate([recall[:1], recall[:-1]]), np.concatenate([recall[1:], [0.0]])
        return float(precision @ ((before - after) / 2))


def _add_to_curves(
    ground_truth: Sequence[TrueInstance],
    predictions: Sequence[PredictionOverlaps],
    limits: InstanceFilter,
    curves: Sequence[_Curve],
) -> None:
    iou = np.zeros((len(ground_truth), len(predictions)))
    for p, prediction in enumerate(predictions):
        for g, pixels in prediction.shared.items():
            iou[g, p] = pixels / (ground_truth[g].pixels + prediction.pixels - pixels)
    evaluated = np.array([not t.isgroup and t.passes(limits) for t in ground_truth], bool)
    # small groups are counted twice, as in the benchmark
    ignored = [int(t.isgroup) + int(not t.passes(limits)) for t in ground_truth]
    ignored_fractions = [(p.void + sum(ignored[g] * n for g, n in p.shared.items())) / p.pixels for p in predictions]
    for threshold, curve in zip(THRESHOLDS.tolist(), curves):
        matches = iou > threshold
        for row in matches[evaluated]:
            scores = sorted(predictions[p].score for p in np.flatnonzero(row).tolist())
            if scores:
                curve.true_positives.append(scores.pop())
                curve.false_positives.extend(scores)
            else:
                curve.false_negatives += 1
        unmatched = ~matches.any(axis=0)
        curve.false_positives.extend(
            p.score
            for p, is_unmatched, fraction in zip(predictions, unmatched, ignored_fractions)
            if is_unmatched and fraction <= threshold
        )


def _count(values: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the values of an array and how often each occurs."""
    counts = np.bincount(values.ravel())
    present = np.flatnonzero(counts)
    return present.tolist(), counts[present].tolist()
