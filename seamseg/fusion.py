"""Outputs of a network as the panoptic map of the image (docs/contract.md, section 4 "Fusion").

:func:`fuse_plainly` is the algorithm: it merges detections and semantic classes so that each pixel belongs to one
segment. :func:`fuse` gives the same map fast, on the CPU or the GPU of the prediction; :func:`merge_queries` merges
masks of queries; :func:`to_result` brings a map to the size of the image. Only predictions on a GPU need torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seamseg.maps.idmaps import reference
from seamseg.maps.idmaps.segments import (
    areas_and_boxes,
    count_classes,
    fill_free,
    nearest_index,
    paste_masks,
    resize_nearest,
    sigmoid,
)
from seamseg.maps.idmaps.upsampled import best_masks
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import ArrayPrediction, Prediction, QueryMasks
from seamseg.utils.errors import lacks_memory
from seamseg.utils.process import LARGE_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

_CLASSES = 256
"""Length of the tables of semantic classes, which are uint8."""


@dataclass(frozen=True)
class FusedMap:
    """A panoptic map at the size of the network's input, or at that of the image.

    ids: int32 `H x W`, 0 void. The lists are indexed by id, entry 0 is void: categories (255 for void), scores (0 for
    void, 1 for semantic segments), iscrowd (regions of thing classes in the semantic map that no detection covers).
    measured: areas and boxes of the ids, as :func:`seamseg.maps.idmaps.segments.areas_and_boxes` returns them, or None.
    """

    ids: np.ndarray
    categories: list[int]
    scores: list[float]
    iscrowd: list[bool]
    measured: tuple[np.ndarray, np.ndarray] | None = None


def fuse_plainly(
    prediction: Prediction[Any], num_stuff: int, score_threshold: float, overlap_threshold: float, min_stuff_area: int
) -> FusedMap:
    """Compute :func:`fuse` as the paper describes it, with masks of the whole image: the oracle of its tests."""
    p = prediction.on_cpu()
    masks = np.zeros((0, 1, 1), np.float32) if p.mask_logits is None else sigmoid(p.mask_logits)
    ids = np.zeros(p.size, np.int32)
    categories, scores, iscrowd = [VOID], [0.0], [False]
    # things: the best score first, each on the pixels that better ones have left
    for k in np.argsort(-p.scores, kind="stable"):
        if not p.scores[k] > score_threshold:
            continue
        crop, (y0, x0, y1, x1) = reference.paste_mask(masks[k], p.boxes[k], p.size)
        mask = np.zeros(p.size, bool)
        mask[y0:y1, x0:x1] = crop
        free = mask & (ids == 0)
        if not free.any() or (mask & (ids > 0)).sum() / mask.sum() > overlap_threshold:
            continue
        ids[free] = len(categories)
        categories.append(int(p.classes[k]) + num_stuff)
        scores.append(float(p.scores[k]))
        iscrowd.append(False)
    # classes: each on what the things have left; a thing class there is a group without separate instances
    for category in [] if p.semantic is None else np.unique(p.semantic).tolist():
        free = (p.semantic == category) & (ids == 0)
        if free.sum() < max(min_stuff_area, 1):
            continue
        ids[free] = len(categories)
        categories.append(category)
        scores.append(1.0)
        iscrowd.append(category >= num_stuff)
    return FusedMap(ids, categories, scores, iscrowd)


def fuse(
    prediction: Prediction[Any],
    num_stuff: int,
    score_threshold: float = 0.5,
    overlap_threshold: float = 0.5,
    min_stuff_area: int = 4096,
    native_size: tuple[int, int] | None = None,
) -> FusedMap:
    """Merge detections and semantic classes: every pixel belongs to at most one segment.

    The map is that of :func:`fuse_plainly` to the bit, which takes no ids. On a CUDA device it is made and measured
    there, by the kernels of :mod:`seamseg.ops`; the CPU makes it if the memory of the device does not suffice.

    Parameters
    ----------
    prediction : prediction of one image, with masks or ids, in tensors, or in arrays as a predictor returns it
    num_stuff : stuff classes, which come before the things
    score_threshold : detections must score above
    overlap_threshold : a detection is dropped if detections of higher score cover more than this fraction of it
    min_stuff_area : semantic segments with fewer free pixels become void
    native_size : `(height, width)` to which a map on a CUDA device is resized there, as by :func:`to_result`, unless it
        has :data:`LARGE_PIXELS`; None for that of the prediction. Not used on the CPU

    Raises
    ------
    ValueError
        if the prediction has detections without masks
    """
    on_gpu = None
    if "ids" in prediction.maps:
        pass  # there is nothing to paste
    elif prediction.semantic_on_gpu is not None and prediction.semantic is prediction.semantic_on_gpu[0]:
        on_gpu = replace(prediction, semantic=prediction.semantic_on_gpu[1])
    elif _has_kernels(prediction):
        on_gpu = prediction
    # the class map is large, and stays where it is merged
    found = (replace(prediction, semantic=None, maps={}) if on_gpu is prediction else prediction).on_cpu()
    kept = np.flatnonzero(found.scores > score_threshold)
    kept = kept[np.argsort(-found.scores[kept], kind="stable")]
    chosen = found.rows(kept)
    if len(kept) > 0 and chosen.mask_logits is None and "ids" not in chosen.maps:
        raise ValueError("fuse: the prediction has no masks; a panoptic map needs a network with a mask branch")
    merged = None
    if on_gpu is not None:
        try:
            merged = _merge_tensors(on_gpu, chosen, overlap_threshold, min_stuff_area, native_size)
        except Exception as error:
            if not lacks_memory(error):
                raise
            chosen = prediction.on_cpu().rows(kept)
    if merged is None:
        merged = _merge_arrays(chosen, overlap_threshold, min_stuff_area)

    ids, things, stuff, *measures = merged
    categories = [VOID, *(chosen.classes[things] + num_stuff).tolist(), *stuff.tolist()]
    scores = [0.0, *chosen.scores[things].tolist(), *[1.0] * len(stuff)]
    iscrowd = [*[False] * (len(categories) - len(stuff)), *(stuff >= num_stuff).tolist()]
    count = len(categories)
    return FusedMap(ids, categories, scores, iscrowd, (measures[0][:count], measures[1][:count]) if measures else None)


_Merged: TypeAlias = tuple[np.ndarray, ...]
"""Ids, whether each detection got one, the classes that did, and areas and boxes of at least all ids if known."""


def _merge_arrays(chosen: ArrayPrediction, overlap_threshold: float, min_stuff_area: int) -> _Merged:
    """Merge detections, best score first, and the class map of a prediction."""
    pasted = np.ones(len(chosen.scores), bool)
    if "ids" in chosen.maps:
        ids = chosen.maps["ids"]
    else:
        ids = np.zeros(chosen.size, np.int32)
        if chosen.mask_logits is not None and len(pasted) > 0:
            pasted = paste_masks(ids, sigmoid(chosen.mask_logits), chosen.boxes, overlap_threshold)
    if chosen.semantic is None:
        return ids, pasted, np.zeros(0, np.int64)
    areas = count_classes(chosen.semantic, ids)
    classes = np.flatnonzero((areas > 0) & (areas >= min_stuff_area))
    id_of_class = np.zeros(len(areas), np.int32)
    id_of_class[classes] = np.count_nonzero(pasted) + 1 + np.arange(len(classes))
    fill_free(ids, chosen.semantic, id_of_class)
    return ids, pasted, classes


def _merge_tensors(
    prediction: Prediction[Any],
    chosen: ArrayPrediction,
    overlap_threshold: float,
    min_stuff_area: int,
    native_size: tuple[int, int] | None,
) -> _Merged:
    """Merge as :func:`_merge_arrays` on the device of a prediction; the host waits once, for the result."""
    import torch

    from seamseg.ops import labels

    device = (prediction.scores if prediction.semantic is None else prediction.semantic).device
    if native_size is None or native_size[0] * native_size[1] >= LARGE_PIXELS:
        native_size = prediction.size

    def upload(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    number = 1 + len(chosen.boxes) + _CLASSES
    dtype = torch.int16 if number <= torch.iinfo(torch.int16).max else torch.int32
    ids = torch.zeros(prediction.size, dtype=dtype, device=device)
    logits = np.zeros((0, 1, 1), np.float32) if chosen.mask_logits is None else chosen.mask_logits
    # in float64, as on the CPU: what exponentials differ in is lost when they are rounded to float32
    masks = upload(logits).double().sigmoid().float()
    pasted = labels.paste_masks_into(ids, masks, upload(chosen.boxes), overlap_threshold, 1, False)
    classes = torch.zeros(0, dtype=torch.bool, device=device)
    if prediction.semantic is not None:
        semantic = prediction.semantic.byte()
        free = labels.count_labels(semantic, _CLASSES, ids)
        classes = (free > 0) & (free >= min_stuff_area)
        labels.fill_free(ids, semantic, (classes.cumsum(0) + pasted.sum()) * classes)
    for axis, (old, new) in enumerate(zip(prediction.size, native_size)):
        if old != new:
            ids = ids.index_select(axis, upload(nearest_index(old, new)))
    areas, corners = labels.count_labels(ids, number), labels.extract_boxes(ids, number)
    host = torch.empty(ids.shape, dtype=dtype, pin_memory=ids.is_cuda)
    host.copy_(ids, non_blocking=True)
    small = torch.cat([x.flatten().int() for x in (pasted, classes, areas, corners)]).cpu().numpy()  # waits for the ids
    kept, found, pixels, sides = np.split(small, np.cumsum([len(pasted), len(classes), number]))
    measured = pixels.astype(np.int64), sides.reshape(-1, 4).astype(np.float32)
    return host.numpy().astype(np.int32), kept > 0, np.flatnonzero(found), *measured


def download(prediction: Prediction[Any]) -> Callable[[], ArrayPrediction]:
    """Start to copy a prediction to arrays, and return a function that waits for them, for any thread.

    A class map that :func:`fuse` can merge on its CUDA device stays there, too; it takes a byte a pixel. :func:`fuse`
    may be called on any stream.
    """
    merged = prediction.mask_logits is not None and prediction.queries is None and prediction.semantic is not None
    keeps = merged and _has_kernels(prediction)
    if not keeps and not getattr(prediction.scores, "is_cuda", False):
        return prediction.on_cpu
    import torch
    from torch.utils import _pytree

    from seamseg import structures as structures  # makes a prediction a container of tensors

    semantic = prediction.semantic
    if semantic is not None:
        # a slice would keep the maps of a whole batch
        semantic = semantic.to(torch.uint8, copy=True)
    sent = _pytree.tree_map_only(torch.Tensor, copy_to_host, replace(prediction, semantic=semantic))
    event = torch.cuda.Event(blocking=True) if prediction.scores.is_cuda else None
    if event is not None:
        event.record(torch.cuda.current_stream(prediction.scores.device))

    def arrays() -> ArrayPrediction:
        # other streams need not wait for the class map, as the host does
        if event is not None:
            event.synchronize()
        found = sent.on_cpu()
        return replace(found, semantic_on_gpu=(found.semantic, semantic)) if keeps else found

    return arrays


def copy_to_host(x: Tensor) -> Tensor:
    """Start to copy a tensor to the host, of a GPU to page-locked memory."""
    import torch

    return torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda).copy_(x, non_blocking=True)


def _has_kernels(prediction: Prediction[Any]) -> bool:
    """Return whether a prediction is on a CUDA device whose kernels are loaded."""
    if not getattr(prediction.scores, "is_cuda", False):
        return False
    from seamseg.ops import kernels

    return kernels().get("GPU") == "loaded"


def merge_queries(
    queries: QueryMasks,
    size: tuple[int, int],
    native_size: tuple[int, int],
    num_stuff: int,
    score_threshold: float = 0.8,
    overlap_threshold: float = 0.8,
) -> FusedMap:
    """Merge masks of queries as the paper does: every pixel belongs to at most one segment, at the size of the image.

    Masks are resized as logits: to the padded input, whose valid part, of this size, is resized to the image. Queries
    must score above `score_threshold`. A pixel belongs to the query with the best score x probability, the first of
    equals, and is void if that probability is below .5. A query is dropped, and its pixels are void, if the pixels
    where it is the best are less than the fraction `overlap_threshold` of those where its probability is at least .5.
    All queries of a stuff class are one segment. Segments are in the order of the queries.
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
    for row, numbers in zip(ids, found.numbers):  # at once the index would take 8 bytes per pixel
        row[:] = id_of_number[numbers]
    return FusedMap(ids, categories, scores, [False] * len(categories))


def to_result(fused: FusedMap, native_size: tuple[int, int], num_stuff: int) -> PanopticResult:
    """Resize a map to the size of the image, if it has another one.

    Ids are resized by nearest neighbour, with the rounding of Pillow; segments that vanish are dropped; areas and boxes
    are those at the new size.

    Parameters
    ----------
    fused : the map
    native_size : `(height, width)` of the image
    num_stuff : stuff classes, which come before the things
    """
    count, ids, measured = len(fused.categories), fused.ids, fused.measured
    if native_size != ids.shape:
        ids, measured = resize_nearest(ids, native_size), None
    areas, boxes = (values.tolist() for values in measured or areas_and_boxes(ids, count))
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
