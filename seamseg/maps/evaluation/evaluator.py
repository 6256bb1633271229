"""Evaluation of pairs of panoptic maps: all scores, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.matching import Matches, set_void
from seamseg.maps.evaluation.panoptic_quality import LegacyPanopticQuality, PanopticQuality, check_sizes
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.evaluation.segments import Numbers, flatten_layers, gt_segments_from_pairs, unmerged_segments
from seamseg.maps.idmaps.histogram import ArrayLike, joint_histogram
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult, Segments


class Comparison(NamedTuple):
    """The matches of an image and the compared segments."""

    matches: Matches
    gt: Segments
    pred: Segments


class PanopticEvaluator:
    """PQ, PQ†, SQ, RQ, and mIoU of the class maps and of the segments, over a stream of images.

    Parameters
    ----------
    classes : classes of the data set, see :func:`class_infos`
    legacy : count like the original program, see
        :class:`seamseg.maps.evaluation.panoptic_quality.LegacyPanopticQuality`

    Attributes
    ----------
    quality, confusion : the counts; pixels of predicted crowds have their class
    uncovered : pixels of predicted crowds among those of `confusion`
    """

    def __init__(self, classes: Sequence[ClassInfo], legacy: bool = False) -> None:
        self.classes = list(classes)
        self.legacy = legacy
        self.quality = LegacyPanopticQuality(len(classes)) if legacy else PanopticQuality(len(classes))
        self.confusion = ConfusionMatrix(len(classes))
        self.uncovered = ConfusionMatrix(len(classes))

    @property
    def n_images(self) -> int:
        """Number of images so far."""
        return self.quality.n_images

    def add(
        self, gt_ids: ArrayLike, gt_segments: Segments, pred_ids: ArrayLike, pred_segments: Segments, name: str = ""
    ) -> Comparison:
        """Compare the two maps of an image.

        Parameters
        ----------
        gt_ids, pred_ids : `H x W` integer maps of segment ids, 0 void
        gt_segments, pred_segments : segments of the maps; `iscrowd` of a prediction is ignored
        name : name of the image, for errors

        Raises
        ------
        InputError
            if the maps differ in size, or as :func:`seamseg.maps.evaluation.matching.match_segments`
        """
        check_sizes(gt_ids.shape, pred_ids.shape, f"image {name}")
        return self.add_pairs(*joint_histogram(gt_ids, pred_ids), gt_segments, pred_segments, name)

    def add_pairs(
        self, pairs: np.ndarray, counts: np.ndarray, gt_segments: Segments, pred_segments: Segments, name: str = ""
    ) -> Comparison:
        """Compare two maps like :meth:`add`, given their joint histogram."""
        matches = self.quality.add_pairs(pairs, counts, gt_segments, pred_segments, name)
        _add_pixels(self.confusion, pairs, counts, gt_segments, pred_segments)
        return Comparison(matches, gt_segments, pred_segments)

    def add_result(
        self, mask: ArrayLike, cat: Numbers, iscrowd: Numbers, result: PanopticResult, name: str = ""
    ) -> Comparison:
        """Compare a result of the network with the ground truth of a dataset folder, at the original size of the image.

        Predicted crowds (things of the semantic map without a detection) are no instances: for PQ and the pixel IoU of
        the segments they are void, like in the files of `CocoPanopticWriter`; for the class map they have their class.

        Parameters
        ----------
        mask : `L x H x W` instance ids
        cat, iscrowd : class (255 void) and crowd flag of each id; entry 0 is void
        result : result of the network, of the same size
        name : name of the image, for errors

        Returns
        -------
        Comparison
            of the segments evaluated by PQ: ground truth with the ids of :func:`gt_segments_from_instances`,
            predictions without crowds

        Raises
        ------
        InputError
            if sizes or ids do not match
        """
        if self.legacy:
            gt_ids, gt_segments = unmerged_segments(mask, cat, iscrowd, name)
        else:
            gt_ids = flatten_layers(mask)
        check_sizes(gt_ids.shape, result.id_map.shape, f"image {name}")
        pairs, counts = joint_histogram(gt_ids, result.id_map)
        if not self.legacy:
            num_stuff = sum(not c.isthing for c in self.classes)
            pairs, gt_segments = gt_segments_from_pairs(pairs, counts, cat, iscrowd, num_stuff, name)
        crowds = [s.id for s in result.segments if s.iscrowd]
        pred_segments = [s for s in result.segments if not s.iscrowd]
        without_crowds = set_void(pairs, column=1, ids=crowds)
        matches = self.quality.add_pairs(without_crowds, counts, gt_segments, pred_segments, name)
        _add_pixels(self.confusion, pairs, counts, gt_segments, result.segments)
        if crowds:
            of_crowds = np.isin(pairs[:, 1], crowds)
            _add_pixels(self.uncovered, pairs[of_crowds], counts[of_crowds], gt_segments, result.segments)
        return Comparison(matches, gt_segments, pred_segments)

    def merge(self, other: PanopticEvaluator) -> None:
        """Add the counts of another object."""
        self.load_state(self.state() + other.state())

    def state(self) -> np.ndarray:
        """Return all counts as one int64 vector, to be summed over processes for :meth:`load_state`."""
        return np.concatenate((self.quality.state(), self.confusion.counts.ravel(), self.uncovered.counts.ravel()))

    def load_state(self, state: np.ndarray) -> None:
        """Replace the counts; the inverse of :meth:`state`."""
        shape, size = self.confusion.counts.shape, self.confusion.counts.size
        self.quality.load_state(state[: -2 * size])
        self.confusion.counts = state[-2 * size : -size].reshape(shape).copy()
        self.uncovered.counts = state[-size:].reshape(shape).copy()

    def scores(self) -> PanopticScores:
        """Compute the scores of all images so far."""
        scores = self.quality.result(self.classes, self.confusion.iou().tolist())
        if not self.uncovered.counts.any():
            return scores
        segments = self.confusion.without(self.uncovered).iou().tolist()
        return replace(scores, mIoU_segments=self.quality.mean_iou(segments))


def _add_pixels(
    confusion: ConfusionMatrix, pairs: np.ndarray, counts: np.ndarray, gt: Segments, pred: Segments
) -> None:
    confusion.add_pairs(pairs, counts, {s.id: s.category for s in gt}, {s.id: s.category for s in pred})
