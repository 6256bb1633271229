"""Instance-level average precision as the Cityscapes benchmark defines it.

Per class and IoU threshold t (.5, .55 ... .95):

- A prediction matches a true instance if their IoU is above t. Of several that match one instance, the best is right
  and the others are false.
- A prediction that matches nothing is false, unless more than the part t of it lies on what is not judged: void,
  groups of its class, instances of its class that are too small (under 100 pixels). A match with a group or a small
  instance is neither right nor false. Void is what the map gives a label that is not evaluated; single caravans and
  trailers are not void.
- Precision is averaged over recall stepwise, each step half before and half behind its point.

With distances there are also averages over instances of at least 1000 pixels no further than 100 m, and 50 m.
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
"""Of the IoU; rounded as the benchmark's are, since an IoU of exactly .6 is possible."""

_CLASSES = [label for label in EVALUATED if label.has_instances]
_IDS = {label.id for label in _CLASSES}
_VOID = [*(label.id for label in LABELS if not label.evaluated), LICENSE_PLATES["instanceIds"]]


@dataclass(frozen=True)
class Judged:
    """Which true instances count: those of so many pixels, no further, with so much of their distance known."""

    pixels: int
    metres: float
    known: float


JUDGED = (Judged(100, math.inf, -math.inf), Judged(1000, 100, 0.5), Judged(1000, 50, 0.5))
"""Without distances only the first can be told."""

Distances = Mapping[int, tuple[float, float]]
"""Median distance in metres, and the part of the pixels of which it is known, by instance id."""


@dataclass(frozen=True)
class TrueInstance:
    """An instance of the ground truth, or a group (id below 1000)."""

    id: int
    pixels: int
    metres: float = -1.0
    known: float = 0.0

    @property
    def isgroup(self) -> bool:
        """Whether it is several objects that are not told apart"""
        return self.id < INSTANCES_FROM

    def counts(self, judged: Judged) -> bool:
        """Whether it is large and near enough."""
        return self.pixels >= judged.pixels and self.metres <= judged.metres and self.known >= judged.known


@dataclass(frozen=True)
class Found:
    """A prediction: its pixels, those on void, and those shared with each true instance of its class, by position."""

    score: float
    pixels: int
    void: int
    shared: Mapping[int, int]


@dataclass(frozen=True)
class FrameOverlaps:
    """One frame: what is there and what was found, by label id."""

    true: Mapping[int, Sequence[TrueInstance]]
    found: Mapping[int, Sequence[Found]]


def overlaps_of_frame(
    instance_ids: np.ndarray,
    predictions: Iterable[tuple[int, float, Patch]],
    distances: Distances | None = None,
    path: Path = Path(),
) -> FrameOverlaps:
    """Measure the predictions of a frame against its ground truth.

    Parameters
    ----------
    instance_ids : `H x W`, of the ground truth
    predictions : label id, confidence and mask of each, of the size of the map; one mask at a time is held. Labels are
        those of :func:`wanted`
    distances : of the true instances, None if they are not known
    path : of the ground truth, for errors

    Raises
    ------
    InputError
        if the ground truth has a value that is of no Cityscapes label
    """
    values, sizes = _count(instance_ids)
    true: dict[int, list[TrueInstance]] = {i: [] for i in _IDS}
    place: dict[int, int] = {}
    labels = label_of_instance(np.array(values), path).tolist()
    for value, label, pixels in zip(values, labels, sizes):
        if label in _IDS:
            place[value] = len(true[label])
            known = {} if distances is None else distances
            true[label].append(TrueInstance(value, pixels, *known.get(value, (-1.0, 0.0))))
    label_of = dict(zip(values, labels))
    found: dict[int, list[Found]] = {i: [] for i in _IDS}
    for label, score, patch in predictions:
        height, width = patch.inside.shape
        under = instance_ids[patch.top : patch.top + height, patch.left : patch.left + width][patch.inside]
        if not len(under):
            continue
        pairs = dict(zip(*_count(under)))
        shared = {place[v]: n for v, n in pairs.items() if v in place and label_of[v] == label}
        found[label].append(Found(score, len(under), sum(pairs.get(v, 0) for v in _VOID), shared))
    return FrameOverlaps(true, found)


def wanted(label: int) -> bool:
    """Whether predictions of a label are scored."""
    return label in _IDS


class InstanceLevel:
    """Outcomes of a stream of frames; what stays is a number a prediction and threshold.

    Parameters
    ----------
    distances : whether the distances of true instances are known
    """

    def __init__(self, distances: bool = False) -> None:
        self.n_images = 0
        self._curves = {
            (judged, label.id): [_Curve() for _ in THRESHOLDS]
            for judged in (JUDGED if distances else JUDGED[:1])
            for label in _CLASSES
        }

    def add(self, frame: FrameOverlaps) -> None:
        """Count one frame."""
        for (judged, label), curves in self._curves.items():
            true, found = frame.true[label], frame.found[label]
            if true or found:
                _judge(true, found, judged, curves)
        self.n_images += 1

    def scores(self) -> InstanceLevelScores:
        """The scores so far."""
        classes = []
        for label in _CLASSES:
            rows = [self._precisions(judged, label.id) for judged in JUDGED]
            ap, far, near = (sum(row) / len(row) for row in rows)
            classes.append(InstanceClassScores(label.name, ap, rows[0][0], far, near, rows[2][0]))
        means = {key: mean(getattr(c, key) for c in classes) for key in AP_KEYS}
        return InstanceLevelScores(**means, n_images=self.n_images, classes=classes)

    def _precisions(self, judged: Judged, label: int) -> list[float]:
        curves = self._curves.get((judged, label))
        return [math.nan] * len(THRESHOLDS) if curves is None else [curve.average() for curve in curves]


class _Curve:
    """Right and false predictions of a class at a threshold, and the true instances that were not found."""

    def __init__(self) -> None:
        self.right, self.false = array("d"), array("d")
        self.missed = 0

    def average(self) -> float:
        """Average precision; NaN if there is no true instance, 0 if nothing was found."""
        count = len(self.right) + self.missed
        if not count:
            return math.nan
        right, false = np.sort(self.right), np.sort(self.false)
        steps = np.unique(np.concatenate([right, false]))
        hits = len(right) - np.searchsorted(right, steps)
        claims = hits + len(false) - np.searchsorted(false, steps)
        recall = np.concatenate([hits / count, [0.0]])
        # the curve ends at precision 1 with nothing recalled
        precision = np.concatenate([hits / claims, [1.0]])
        before, behind = np.concatenate([recall[:1], recall[:-1]]), np.concatenate([recall[1:], [0.0]])
        return float(precision @ ((before - behind) / 2))


def _judge(true: Sequence[TrueInstance], found: Sequence[Found], judged: Judged, curves: Sequence[_Curve]) -> None:
    # IoU of each prediction with each true instance of its class
    iou = np.zeros((len(true), len(found)))
    for p, prediction in enumerate(found):
        for g, pixels in prediction.shared.items():
            iou[g, p] = pixels / (true[g].pixels + prediction.pixels - pixels)
    counts = np.array([not t.isgroup and t.counts(judged) for t in true], bool)
    # a small group is left out twice, as the benchmark does
    unjudged = [int(t.isgroup) + int(not t.counts(judged)) for t in true]
    excused = [(f.void + sum(unjudged[g] * n for g, n in f.shared.items())) / f.pixels for f in found]
    for threshold, curve in zip(THRESHOLDS.tolist(), curves):
        matches = iou > threshold
        for row in matches[counts]:
            scores = sorted(found[p].score for p in np.flatnonzero(row).tolist())
            if scores:
                curve.right.append(scores.pop())
                curve.false.extend(scores)
            else:
                curve.missed += 1
        lonely = ~matches.any(axis=0)
        curve.false.extend(f.score for f, alone, part in zip(found, lonely, excused) if alone and part <= threshold)


def _count(values: np.ndarray) -> tuple[list[int], list[int]]:
    """The values of an array that occur, and how often."""
    counts = np.bincount(values.ravel())
    present = np.flatnonzero(counts)
    return present.tolist(), counts[present].tolist()
