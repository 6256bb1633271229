"""Outputs of a network as masks and panoptic map of the image (docs/contract.md, section 4 "Fusion"); no torch.

:func:`paste_detections` resizes each detection to the image. :func:`fuse` and :func:`to_result` merge detections and
semantic classes, so that each pixel belongs to one segment; :func:`merge_queries` does so for masks of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.idmaps.resize import IdMap, ResizedIds, nearest_index, resize_nearest
from seamseg.idmaps.segments import areas_and_boxes, count_classes, fill_free, paste_mask, paste_masks, sigmoid
from seamseg.idmaps.upsampled import best_masks
from seamseg.panoptic_map import VOID, PanopticResult, Segment
from seamseg.predictions import Prediction, QueryMasks
from seamseg.utils.process_settings import LARGE_PIXELS


@dataclass(frozen=True)
class FusedMap:
    """A panoptic map at the size of the network's input, or of queries at that of the image.

    ids: int32 `H x W`, 0 void. The lists are indexed by id, entry 0 is void: categories (255 for void), scores (0 for
    void, 1 for stuff), iscrowd (regions of thing classes in the semantic map that no detection covers).
    """

    ids: np.ndarray
    categories: list[int]
    scores: list[float]
    iscrowd: list[bool]


def fuse(
    prediction: Prediction[Any],
    num_stuff: int,
    score_threshold: float = 0.5,
    overlap_threshold: float = 0.5,
    min_stuff_area: int = 4096,
    keep_empty: bool = False,
) -> FusedMap:
    """Merge detections and semantic classes: every pixel belongs to at most one segment.

    Parameters
    ----------
    prediction : prediction of one image, with masks; tensors are copied to the CPU
    num_stuff : stuff classes, which come before the things
    score_threshold : detections must score above
    overlap_threshold : a detection is dropped if detections of higher score cover more than this fraction of it
    min_stuff_area : semantic segments with fewer free pixels become void
    keep_empty : give ids to segments without a pixel, as the original does

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


def merge_queries(
    queries: QueryMasks,
    size: tuple[int, int],
    native_size: tuple[int, int],
    num_stuff: int,
    score_threshold: float = 0.8,
    overlap_threshold: float = 0.8,
) -> FusedMap:
    """Merge masks of queries as the paper does: every pixel belongs to at most one segment, at the size of the image.

    Masks are resized as logits: to the padded input, whose valid part is resized to the image. A pixel belongs to the
    query with the best score x probability, the first of equals, and is void if that probability is below .5. All
    queries of a stuff class are one segment. Segments are in the order of the queries.

    Parameters
    ----------
    queries : queries of one image
    size : `(height, width)` of the valid part of the network's input
    native_size : `(height, width)` of the image
    num_stuff : stuff classes, which come before the things
    score_threshold : queries must score above
    overlap_threshold : a query is dropped, and its pixels are void, if the pixels where it is the best are less than
        this fraction of those where its probability is at least .5

    Returns
    -------
    FusedMap
    """
    kept = np.flatnonzero(queries.scores > score_threshold)
    found = best_masks(queries.mask_logits[kept], queries.scores[kept], queries.padded_size, size, native_size)
    id_of_number, categories, scores = np.zeros(len(kept) + 1, np.int32), [VOID], [0.0]
    id_of_stuff: dict[int, int] = {}
    for k, category in enumerate(queries.classes[kept].tolist()):
        if found.segment_areas[k] == 0 or found.mask_areas[k] / found.original_areas[k] < overlap_threshold:
            continue
        if category not in id_of_stuff:
            categories.append(category)
            scores.append(float(queries.scores[kept[k]]) if category >= num_stuff else 1.0)
            if category < num_stuff:
                id_of_stuff[category] = len(categories) - 1
        id_of_number[k + 1] = id_of_stuff.get(category, len(categories) - 1)
    ids = np.empty(found.numbers.shape, np.int32)
    for row, numbers in zip(ids, found.numbers):  # at once the index would take 8 bytes a pixel
        row[:] = id_of_number[numbers]
    return FusedMap(ids, categories, scores, [False] * len(categories))


def to_result(fused: FusedMap, native_size: tuple[int, int], num_stuff: int) -> PanopticResult:
    """Resize a map to the size of the image, if it has another one.

    Ids are resized by nearest neighbour, with the rounding of Pillow; segments that vanish are dropped; areas and boxes
    are those at the new size. The map of an image of :data:`LARGE_PIXELS` is an array only where one is needed.

    Parameters
    ----------
    fused : map at the size of the network's input
    native_size : `(height, width)` of the image
    num_stuff : stuff classes, which come before the things
    """
    count, (height, width), (old_height, old_width) = len(fused.categories), native_size, fused.ids.shape
    ids: IdMap = fused.ids
    if (height, width) == (old_height, old_width):
        measured = areas_and_boxes(fused.ids, count)
    elif height * width >= LARGE_PIXELS and height >= old_height and width >= old_width:
        ids = ResizedIds(fused.ids, native_size)
        measured = ids.areas_and_boxes(count)
    else:
        ids = resize_nearest(fused.ids, native_size)
        measured = areas_and_boxes(ids, count)
    areas, boxes = (values.tolist() for values in measured)
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
    return PanopticResult(ids, segments)  # type: ignore[arg-type]  # see its field


@dataclass(frozen=True)
class PastedDetection:
    """A detection in pixel coordinates of the image.

    Attributes
    ----------
    category : thing class, from 0
    score : 0 to 1
    box : `(y0, x0, y1, x1)`
    crop : bool `h x w`, the part of the mask with all its pixels; None if the network has no masks
    corner : `(y, x)` of the crop in the image
    """

    category: int
    score: float
    box: tuple[float, float, float, float]
    crop: np.ndarray | None
    corner: tuple[int, int] = (0, 0)


def paste_detections(
    prediction: Prediction[Any], size: tuple[int, int], by_nearest: bool = False
) -> Iterator[PastedDetection]:
    """Iterate over all detections before the fusion, which may overlap; masks are pasted one by one.

    Parameters
    ----------
    prediction : prediction at the network's size
    size : `(height, width)` of the image
    by_nearest : make the masks at the network's size and resize them by nearest neighbour, and clip the boxes, as the
        original does for average precision; by default masks are sampled at the size of the image
    """
    prediction = prediction.on_cpu()
    factors = np.array([size[0] / prediction.size[0], size[1] / prediction.size[1]] * 2)
    boxes = (prediction.boxes.astype(np.float64) * factors).astype(np.float32)
    if by_nearest:
        boxes = boxes.clip(0, np.array(size * 2, np.float32))
    classes, scores = prediction.classes.tolist(), prediction.scores.tolist()
    for k, (box, category, score) in enumerate(zip(boxes, classes, scores)):
        y0, x0, y1, x1 = box.tolist()
        crop, corner = None, (0, 0)
        if prediction.mask_logits is not None:
            where = (prediction.boxes[k], prediction.size) if by_nearest else (box, size)
            crop, region = paste_mask(sigmoid(prediction.mask_logits[k]), *where)
            corner = region[0], region[1]
            if by_nearest:
                crop, corner = _resized(crop, corner, prediction.size, size)
        yield PastedDetection(int(category), score, (y0, x0, y1, x1), crop, corner)


def _resized(
    crop: np.ndarray, corner: tuple[int, int], old: tuple[int, int], new: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Resize a part of a mask by nearest neighbour, as if with the whole mask; return the new part and its corner."""
    if old == new:
        return crop, corner
    chosen, starts = [], []
    for axis in (0, 1):
        index = nearest_index(old[axis], new[axis]) - corner[axis]
        start, stop = np.searchsorted(index, [0, crop.shape[axis]])
        chosen.append(index[start:stop])
        starts.append(int(start))
    return crop[chosen[0][:, None], chosen[1]], (starts[0], starts[1])
