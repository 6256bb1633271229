"""Fusion of detections and semantic classes into one panoptic map (docs/contract.md, section 4 "Fusion")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seamseg.idmaps.resize import resize_nearest
from seamseg.ops.labels import count_labels, extract_boxes, fill_free
from seamseg.ops.paste import paste_masks_into
from seamseg.panoptic_map import VOID, PanopticResult, Segment
from seamseg.structures import Prediction


@dataclass(frozen=True)
class FusedMap:
    """A panoptic map at the size of the network's input.

    ids: int32 `H x W`, 0 void. The lists are indexed by id, entry 0 is void: categories (255 for void), scores (0 for
    void, 1 for stuff), iscrowd (regions of thing classes in the semantic map that no detection covers).
    """

    ids: Tensor
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
    prediction : of one image, with masks
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
    height, width = prediction.size
    ids = torch.zeros((height, width), dtype=torch.int32, device=prediction.scores.device)
    categories, scores, iscrowd = [VOID], [0.0], [False]

    kept = torch.nonzero(prediction.scores > score_threshold).flatten()
    kept = kept[torch.argsort(prediction.scores[kept], descending=True, stable=True)]
    if kept.shape[0] > 0 and prediction.mask_logits is None:
        raise ValueError("fuse: the prediction has no masks; a panoptic map needs a network with a mask branch")
    if kept.shape[0] > 0 and prediction.mask_logits is not None:
        placed = paste_masks_into(
            ids, prediction.mask_logits[kept], prediction.boxes[kept], overlap_threshold, keep_empty=keep_empty
        )
        kept = kept[placed]
        categories += (prediction.classes[kept] + num_stuff).tolist()
        scores += prediction.scores[kept].tolist()
        iscrowd += [False] * int(kept.shape[0])

    if prediction.semantic is not None:
        _add_semantic(ids, prediction.semantic, categories, scores, iscrowd, num_stuff, min_stuff_area, keep_empty)
    return FusedMap(ids, categories, scores, iscrowd)


def _add_semantic(
    ids: Tensor,
    semantic: Tensor,
    categories: list[int],
    scores: list[float],
    iscrowd: list[bool],
    num_stuff: int,
    min_area: int,
    keep_empty: bool,
) -> None:
    classes = int(semantic.max()) + 1 if semantic.numel() > 0 else 0
    areas = count_labels(semantic, classes, ids).tolist()
    present = count_labels(semantic, classes).tolist() if keep_empty else areas
    id_of_class = [0] * classes
    for category, area in enumerate(areas):
        if present[category] == 0 or area < min_area:
            continue
        id_of_class[category] = len(categories)
        categories.append(category)
        scores.append(1.0)
        iscrowd.append(category >= num_stuff)
    fill_free(ids, semantic, torch.tensor(id_of_class, dtype=torch.int64, device=ids.device))


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
    ids = fused.ids.cpu().numpy().astype(np.int32, copy=False)
    if ids.shape != tuple(native_size):
        ids = resize_nearest(ids, native_size)
    count = len(fused.categories)
    id_map = torch.from_numpy(ids)
    areas, boxes = count_labels(id_map, count).tolist(), extract_boxes(id_map, count).tolist()
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
