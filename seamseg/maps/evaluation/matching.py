"""Matching of predicted and ground-truth segments of an image, by the official definition of COCO panoptic.

Kirillov et al., Panoptic Segmentation, CVPR 2019, with the corner cases of the official evaluation:

- Two segments of one class match if their IoU is above one half. Void pixels of the ground truth are excluded from the
  union.
- A crowd of the ground truth is never matched and never missed.
- An unmatched prediction is ignored if more than half of it lies on void or on the crowd of its class. Only the
  last of several crowds of a class in an image counts.
- Pixels of id 0 are a segment of the prediction if one has this id (DETR numbers from 0), else void. In the ground
  truth they are void: the official tool would count them as void and as a segment, with IoUs above 1.
- The area of a ground-truth segment is that of its annotation; the area of a prediction is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from seamseg.maps.panoptic_map import VOID_ID, SegmentLike, Segments
from seamseg.utils.errors import InputError


class SegmentPair(NamedTuple):
    """Two segments of one class that overlap; `gt` and `pred` are their ids."""

    category: int
    iou: float
    gt: int
    pred: int


@dataclass
class Matches:
    """The matches of an image: `matched` are the true positives, `false_...` the unmatched segments.

    `overlapping` are all overlapping pairs of one class, whatever their IoU, without crowds (for PQ†); the areas are in
    pixels, by id of all segments, annotated or counted.
    """

    matched: list[SegmentPair] = field(default_factory=list)
    overlapping: list[SegmentPair] = field(default_factory=list)
    false_positives: list[SegmentLike] = field(default_factory=list)
    false_negatives: list[SegmentLike] = field(default_factory=list)
    gt_areas: dict[int, float] = field(default_factory=dict)
    pred_areas: dict[int, int] = field(default_factory=dict)


def match_segments(
    pairs: np.ndarray, counts: np.ndarray, gt_segments: Segments, pred_segments: Segments, name: str = ""
) -> Matches:
    """Match the segments of one image, of which `name` is for errors.

    `pairs`, `K x 2`, are (ground-truth id, predicted id) of pixels, and `counts`, `K`, the pixels of each pair, see
    :func:`seamseg.maps.idmaps.histogram.joint_histogram`; a pair may occur more than once. Segments of the ground truth
    are in the order of the annotations; ids of its map without a segment belong to no class, but are not void.

    InputError if an id of the predicted map has no segment, a predicted segment has no pixel, or a segment of the
    ground truth has the id of void or too small an annotated area.
    """
    where = f"image {name}: " if name else ""
    overlap: defaultdict[tuple[int, int], int] = defaultdict(int)
    gt_pixels: defaultdict[int, int] = defaultdict(int)
    pred_pixels: defaultdict[int, int] = defaultdict(int)
    for (g, p), count in zip(pairs.tolist(), counts.tolist()):
        overlap[g, p] += count
        gt_pixels[g] += count
        pred_pixels[p] += count
    gt_by_id = {s.id: s for s in gt_segments}
    pred_by_id = {s.id: s for s in pred_segments}
    _check_prediction(pred_by_id, pred_pixels, where)
    if VOID_ID in gt_by_id:
        raise InputError(f"{where}the ground truth has a segment with id 0, which is void there; number them from 1")

    gt_areas = {i: gt_pixels[i] if s.area is None else s.area for i, s in gt_by_id.items()}
    matches = Matches(gt_areas=gt_areas, pred_areas={i: pred_pixels[i] for i in pred_by_id})
    for (g, p), shared in overlap.items():
        gt, pred = gt_by_id.get(g), pred_by_id.get(p)
        if gt is None or pred is None or gt.iscrowd or gt.category != pred.category:
            continue
        union = pred_pixels[p] + gt_areas[g] - shared - overlap.get((VOID_ID, p), 0)
        if union <= shared / (1 << 20):  # an annotated area can raise an IoU above 1; sums of IoUs must stay exact
            raise InputError(
                f"{where}ground-truth segment {g} has an annotated area of {gt_areas[g]}, but more pixels in its map"
            )
        matches.overlapping.append(SegmentPair(gt.category, shared / union, g, p))
    matches.matched.extend(pair for pair in matches.overlapping if pair.iou > 0.5)

    gt_matched = {pair.gt for pair in matches.matched}
    pred_matched = {pair.pred for pair in matches.matched}
    crowd_of_class = {gt.category: g for g, gt in gt_by_id.items() if gt.iscrowd}
    matches.false_negatives.extend(s for g, s in gt_by_id.items() if g not in gt_matched and not s.iscrowd)
    for p, pred in pred_by_id.items():
        if p in pred_matched:
            continue
        ignored = overlap.get((VOID_ID, p), 0)
        if pred.category in crowd_of_class:
            ignored += overlap.get((crowd_of_class[pred.category], p), 0)
        if ignored / pred_pixels[p] <= 0.5:
            matches.false_positives.append(pred)
    return matches


def set_void(pairs: np.ndarray, column: int, ids: Sequence[int]) -> np.ndarray:
    """Replace ids of one of the maps of a joint histogram by void."""
    if not ids:
        return pairs
    out: np.ndarray = pairs.copy()
    out[np.isin(out[:, column], ids), column] = VOID_ID
    return out


def _check_prediction(pred_by_id: Mapping[int, SegmentLike], pixels: Mapping[int, int], where: str) -> None:
    unlisted = sorted(set(pixels) - set(pred_by_id) - {VOID_ID})
    if unlisted:
        raise InputError(f"{where}id {unlisted[0]} is in the predicted map but not among its segments{_more(unlisted)}")
    unseen = sorted(set(pred_by_id) - set(pixels))
    if unseen:
        raise InputError(f"{where}predicted segment {unseen[0]} has no pixel in the predicted map{_more(unseen)}")


def _more(ids: list[int]) -> str:
    return f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
