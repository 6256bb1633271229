"""Fusion of detections and semantic classes into one panoptic map (docs/contract.md, section 4 "Fusion"); no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seamseg.idmaps.resize import resize_nearest
from seamseg.idmaps.segments import areas_and_boxes, count_classes, fill_free, paste_masks, sigmoid
from seamseg.panoptic_map import VOID, PanopticResult, Segment
from seamseg.predictions import Prediction


@dataclass(frozen=True)
class FusedMap:
    """A panoptic map at the size of the network's input.

    ids: int32 `H x W`, 0 void. The lists are indexed by id, entry 0 is void: categories (255 for void), scores (0 for
    void, 1 for stuff), iscrowd (regions of thing classes in the semantic map that no detection covers).
    """

    ids: np.ndarray
    categories: list[int]
    scores: list[float]
    iscrowd: list[bool]


def fuse(
    prediction: Prediction,
    num_stuff: int,
    score_threshold: float = 0.5,
    overlap_threshold: float = 0.5,
    min_stuff_area: int = 4096,
    keep_empty: bool = False,
) -> FusedMap:
    """Merge detections and semantic classes: every pixel belongs to at most one segment.

    Parameters
    ----------
    prediction : of one image, with masks; tensors are copied to the CPU
    num_stuff : stuff classes, which come before the things
    score_threshold : detections must score above
    overlap_threshold : a detection is dropped if detections of higher score cover more than this fraction of it
    min_stuff_area : semantic segments with fewer free pixels become void
    keep_empty : give ids to segments without a pixel, as the original does

    Returns
    -------
    FusedMap

    Raises
    ------
    ValueError
        if the prediction has detections without masks
    """
    prediction = prediction.on_cpu()
    ids = np.zeros(prediction.size, np.int32)
    categories, scores, iscrowd = [VOID], [0.0], [False]

    kept = np.flatnonzero(prediction.scores > score_threshold)
    kept = kept[np.argsort(-prediction.scores[kept], kind="stable")]
    if len(kept) > 0:
        if prediction.mask_logits is None:
            raise ValueError("fuse: the prediction has no masks; a panoptic map needs a network with a mask branch")
        masks = sigmoid(prediction.mask_logits[kept])
        kept = kept[paste_masks(ids, masks, prediction.boxes[kept], overlap_threshold, keep_empty)]
        categories += (prediction.classes[kept] + num_stuff).tolist()
        scores += prediction.scores[kept].tolist()
        iscrowd += [False] * len(kept)

    if prediction.semantic is not None:
        areas = count_classes(prediction.semantic, ids)
        present = count_classes(prediction.semantic) if keep_empty else areas
        id_of_class = np.zeros(len(areas), np.int32)
        for category in np.flatnonzero((present > 0) & (areas >= min_stuff_area)).tolist():
            id_of_class[category] = len(categories)
            categories.append(category)
            scores.append(1.0)
            iscrowd.append(category >= num_stuff)
        fill_free(ids, prediction.semantic, id_of_class)
    return FusedMap(ids, categories, scores, iscrowd)


def to_result(fused: FusedMap, native_size: tuple[int, int], num_stuff: int) -> PanopticResult:
    """Resize a map to the size of the image.

    Ids are resized by nearest neighbour, with the rounding of Pillow; segments that vanish are dropped; areas and boxes
    are those at the new size.

    Parameters
    ----------
    fused : map at the size of the network's input
    native_size : `(height, width)` of the image
    num_stuff : stuff classes, which come before the things
    """
    ids = fused.ids if fused.ids.shape == tuple(native_size) else resize_nearest(fused.ids, native_size)
    count = len(fused.categories)
    areas, boxes = (values.tolist() for values in areas_and_boxes(ids, count))
    segments = [
        Segment(
            id=i,
            category=fused.categories[i],
            isthing=fused.categories[i] >= num_stuff,
            score=fused.scores[i] if fused.categories[i] >= num_stuff and not fused.iscrowd[i] else None,
            area=areas[i],
            box=tuple(boxes[i]),
            iscrowd=fused.iscrowd[i],
        )
        for i in range(1, count)
        if areas[i] > 0
    ]
    return PanopticResult(ids, segments)
