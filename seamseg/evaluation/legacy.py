"""The metrics as the original program counted them, for comparison with old logs (`--legacy-metrics`).

Where they differ from the official definition:

- a crowd is void for every class, not only for its own;
- an instance that is listed but has no pixel (resizing can lose it) is a miss;
- stuff segments of one class are not merged;
- a class that never occurs counts as 0 in the means of PQ, SQ and RQ, and makes mIoU NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seamseg.evaluation.matching import Matches, without
from seamseg.evaluation.panoptic_quality import PanopticQuality
from seamseg.evaluation.scores import ClassScores, PanopticScores, summarise
from seamseg.panoptic_map import ClassInfo, SegmentInfo, SegmentLike


class LegacyPanopticQuality(PanopticQuality):
    """Panoptic quality in the original's way; used like its base."""

    def add_pairs(
        self,
        pairs: np.ndarray,
        counts: np.ndarray,
        gt_segments: Sequence[SegmentLike],
        pred_segments: Sequence[SegmentLike],
        name: str = "",
    ) -> Matches:
        """Count one image from the joint histogram of its two maps."""
        pairs = without(pairs, 0, [s.id for s in gt_segments if s.iscrowd])
        pairs = without(pairs, 1, [s.id for s in pred_segments if s.iscrowd])
        visible = set(pairs[:, 1].tolist())
        gt = [SegmentInfo(s.id, s.category) for s in gt_segments if not s.iscrowd]  # areas are counted, not stated
        pred = [s for s in pred_segments if not s.iscrowd and s.id in visible]
        return super().add_pairs(pairs, counts, gt, pred, name)

    def result(self, classes: Sequence[ClassInfo], iou: Sequence[float] | None = None) -> PanopticScores:
        """The scores so far; absent classes count as 0."""
        official = super().result(classes, iou)
        scores = summarise([_zero_for_nothing(c) for c in official.per_class], self.n_images)
        pixel_ious = [c.IoU for c in official.per_class]
        return replace(scores, mIoU=math.fsum(pixel_ious) / len(pixel_ious) if pixel_ious else math.nan)


def _zero_for_nothing(scores: ClassScores) -> ClassScores:
    pq, sq, rq, dagger = (0.0 if math.isnan(v) else v for v in (scores.PQ, scores.SQ, scores.RQ, scores.PQ_dagger))
    return replace(scores, PQ=pq, SQ=sq, RQ=rq, PQ_dagger=dagger)
