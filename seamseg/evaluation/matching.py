"""Which predicted segments of an image match which ground-truth segments: the official definition of COCO panoptic.

Kirillov et al., Panoptic Segmentation, CVPR 2019, with the corner cases of the official evaluation:

- Two segments of one class match when their IoU is above one half. Pixels that the ground truth leaves void do not
  count for the union.
- A crowd of the ground truth is never matched and never missed.
- An unmatched prediction is forgiven when more than half of it lies on void or on the crowd of its own class. Of
  several crowds of one class in an image only the last counts.
- The area of a ground-truth segment is the one its annotation states; that of a prediction is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from seamseg.panoptic_map import VOID_ID, SegmentLike
from seamseg.utils.errors import InputError

_MOST_IOU = 1 << 20
"""A stated area can make it more than 1; sums of it must stay exact."""


class Touch(NamedTuple):
    """A ground-truth segment and a predicted one of the same class that share a pixel; `gt`, `pred` are their ids."""

    category: int
    iou: float
    gt: int
    pred: int


@dataclass
class Matches:
    """The outcome for one image.

    Attributes
    ----------
    matched : the true positives
    touching : all pairs of one class that share a pixel, whatever their IoU, crowds left out (for PQ†)
    false_positives, false_negatives : the segments
    gt_areas, pred_areas : pixels by id, stated or counted, of all segments
    """

    matched: list[Touch] = field(default_factory=list)
    touching: list[Touch] = field(default_factory=list)
    false_positives: list[SegmentLike] = field(default_factory=list)
    false_negatives: list[SegmentLike] = field(default_factory=list)
    gt_areas: dict[int, float] = field(default_factory=dict)
    pred_areas: dict[int, int] = field(default_factory=dict)


def match_segments(
    pairs: np.ndarray,
    counts: np.ndarray,
    gt_segments: Sequence[SegmentLike],
    pred_segments: Sequence[SegmentLike],
    name: str = "",
) -> Matches:
    """Match the segments of one image.

    Parameters
    ----------
    pairs : `K x 2`, (ground-truth id, predicted id) of pixels, 0 void (`seamseg.idmaps.histogram.joint_histogram`)
    counts : `K`, pixels of each pair; a pair may occur more than once
    gt_segments : of the ground truth, in the order of the annotations. Ids of the map that none of them has belong to
        no class, but are not void
    pred_segments : of the prediction; their ids must be those of the map
    name : of the image, for errors

    Raises
    ------
    InputError
        if an id of the predicted map has no segment, a predicted segment has no pixel, a segment has the id of void, or
        the stated area of a ground-truth segment is too small to be true
    """
    where = f"image {name}: " if name else ""
    overlap: defaultdict[tuple[int, int], int] = defaultdict(int)
    gt_pixels: defaultdict[int, int] = defaultdict(int)
    pred_pixels: defaultdict[int, int] = defaultdict(int)
    for (g, p), count in zip(pairs.tolist(), counts.tolist()):
        overlap[g, p] += count
        gt_pixels[g] += count
        pred_pixels[p] += count

    gt_of = {s.id: s for s in gt_segments}
    pred_of = {s.id: s for s in pred_segments}
    _check_prediction(pred_of, pred_pixels, where)
    if VOID_ID in gt_of:
        raise InputError(f"{where}the ground truth has a segment with id 0, which means void")
    gt_area = {i: gt_pixels[i] if s.area is None else s.area for i, s in gt_of.items()}

    out = Matches(gt_areas=gt_area, pred_areas={i: pred_pixels[i] for i in pred_of})
    gt_matched, pred_matched = set(), set()
    for (g, p), shared in overlap.items():
        gt, pred = gt_of.get(g), pred_of.get(p)
        if gt is None or pred is None or gt.iscrowd or gt.category != pred.category:
            continue
        union = pred_pixels[p] + gt_area[g] - shared - overlap.get((VOID_ID, p), 0)
        if union <= shared / _MOST_IOU:
            raise InputError(
                f"{where}ground-truth segment {g} states an area of {gt_area[g]}, its map shows more pixels"
            )
        iou = shared / union
        touch = Touch(gt.category, iou, g, p)
        out.touching.append(touch)
        if iou > 0.5:
            out.matched.append(touch)
            gt_matched.add(g)
            pred_matched.add(p)

    crowd_of_class: dict[int, int] = {}
    for g, gt in gt_of.items():
        if g in gt_matched:
            continue
        if gt.iscrowd:
            crowd_of_class[gt.category] = g
        else:
            out.false_negatives.append(gt)

    for p, pred in pred_of.items():
        if p in pred_matched:
            continue
        forgiven = overlap.get((VOID_ID, p), 0)
        if pred.category in crowd_of_class:
            forgiven += overlap.get((crowd_of_class[pred.category], p), 0)
        if forgiven / pred_pixels[p] <= 0.5:
            out.false_positives.append(pred)
    return out


def without(pairs: np.ndarray, column: int, ids: Sequence[int]) -> np.ndarray:
    """The pairs of a joint histogram with some ids of one of its maps made void."""
    if not ids:
        return pairs
    out = pairs.copy()
    out[np.isin(out[:, column], ids), column] = VOID_ID
    return out


def _check_prediction(pred_of: dict[int, SegmentLike], pixels: dict[int, int], where: str) -> None:
    if VOID_ID in pred_of:
        raise InputError(f"{where}the prediction lists a segment with id 0, which means void")
    unlisted = sorted(set(pixels) - set(pred_of) - {VOID_ID})
    if unlisted:
        raise InputError(f"{where}id {unlisted[0]} is in the predicted map but not among its segments{_more(unlisted)}")
    unseen = sorted(set(pred_of) - set(pixels))
    if unseen:
        raise InputError(f"{where}predicted segment {unseen[0]} has no pixel in the predicted map{_more(unseen)}")


def _more(ids: list[int]) -> str:
    return f" (nor are {len(ids) - 1} more)" if len(ids) > 1 else ""
