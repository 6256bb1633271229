"""Evaluation of a folder of results with the Cityscapes protocol, with the scores of the official tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.evaluation.cityscapes.instance_level import (
    Distances,
    FrameOverlaps,
    InstanceLevel,
    is_evaluated,
    overlaps_of_frame,
)
from seamseg.evaluation.cityscapes.pixel_level import Histogram, PixelLevel
from seamseg.evaluation.cityscapes.results import CLASS_OF, CLASSES, Results, find_results, segments_from_pairs
from seamseg.evaluation.cityscapes.scores import CityscapesScores
from seamseg.evaluation.evaluator import PanopticEvaluator
from seamseg.evaluation.panoptic_quality import check_png_size, check_sizes
from seamseg.formats.cityscapes.instance_files import Patch, read_instance_list, read_mask
from seamseg.formats.cityscapes.labels import read_map
from seamseg.formats.cityscapes.layout import CityscapesFrame, find_frames
from seamseg.formats.coco_panoptic import segments_of
from seamseg.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import threaded_map


@dataclass(frozen=True)
class _ComparedFrame:
    """The histograms and overlaps of a frame; their size does not depend on that of the frame."""

    frame: CityscapesFrame
    pixel: tuple[Histogram, Histogram] | None
    instance: FrameOverlaps | None
    panoptic: Histogram | None


def evaluate_cityscapes(
    gt: str | Path,
    pred: str | Path,
    workers: int = 1,
    progress: Callable[[Iterable[Any], int, str], Iterable[Any]] | None = None,
    distances: Callable[[str], Distances] | None = None,
) -> CityscapesScores:
    """Compute the pixel-level, instance-level and panoptic scores of the Cityscapes benchmark, frame by frame.

    All parts of the folder are evaluated; each part must have every frame of the ground truth. Memory does not grow
    with the frames, except for ten numbers per predicted instance and the panoptic JSON.

    Parameters
    ----------
    gt : folder of a split, such as `gtFine/val`, with `CITY/*_gtFine_{labelIds,instanceIds}.png`
    pred : folder of results, see :func:`seamseg.evaluation.cityscapes.results.find_results`
    workers : threads that decode and compare
    progress : wraps the frames, `progress(iterable, total, description)`
    distances : returns those of the instances of a frame, given its stem (`<city>_<sequence>_<frame>`); without it,
        AP100m, AP50m and AP50_50m are NaN

    Raises
    ------
    InputError
        if a file is missing or broken, a frame has no prediction or several, sizes differ, or a label is unknown
    """
    frames = find_frames(gt)
    results = find_results(pred, frames)
    pixel, instance = PixelLevel(), InstanceLevel(distances is not None)
    panoptic = PanopticEvaluator(CLASSES)

    def compare(frame: CityscapesFrame) -> _ComparedFrame:
        return _compare(frame, results, None if distances is None else distances(frame.stem))

    done: Iterable[_ComparedFrame] = threaded_map(compare, frames, workers)
    for one in done if progress is None else progress(done, len(frames), "comparing"):
        frame = one.frame
        if one.pixel is not None and results.pixel is not None:
            labels, instances = one.pixel
            pixel.add_pairs(labels, instances, frame.label_ids, frame.instance_ids, results.pixel[frame.stem])
        if one.instance is not None:
            instance.add(one.instance)
        if one.panoptic is not None and results.panoptic is not None:
            pairs, counts = one.panoptic
            pairs, gt_segments = segments_from_pairs(pairs, counts, frame.instance_ids)
            pred_segments = segments_of(results.annotations[frame.stem], CLASS_OF, results.panoptic.path)
            panoptic.add_pairs(pairs, counts, gt_segments, pred_segments, frame.stem)
    return CityscapesScores(
        pixel=None if results.pixel is None else pixel.scores(),
        instance=None if results.instance is None else instance.scores(),
        panoptic=None if results.panoptic is None else panoptic.scores(),
        not_found=results.not_found,
    )


def _compare(frame: CityscapesFrame, results: Results, distances: Distances | None) -> _ComparedFrame:
    instance_ids = read_map(frame.instance_ids, "ground truth instanceIds")
    pixel = instance = panoptic = None
    if results.pixel is not None:
        path = results.pixel[frame.stem]
        label_ids = read_map(frame.label_ids, "ground truth labelIds")
        if label_ids.shape != instance_ids.shape:
            raise InputError(f"{frame.label_ids}: differs in size from {frame.instance_ids.name}")
        check_png_size(label_ids.shape, path)
        predicted = read_map(path, "predicted label ids")
        check_sizes(label_ids.shape, predicted.shape, path)
        pixel = joint_histogram(label_ids, predicted), joint_histogram(instance_ids, predicted)
    if results.instance is not None:
        masks = _masks(results.instance[frame.stem], results.root, instance_ids)
        instance = overlaps_of_frame(instance_ids, masks, distances, frame.instance_ids)
    if results.panoptic is not None:
        annotation = results.annotations[frame.stem]
        path = results.panoptic.folder / annotation.file_name
        check_png_size(instance_ids.shape, path)
        ids = results.panoptic.read_ids(annotation)
        check_sizes(instance_ids.shape, ids.shape, path)
        panoptic = joint_histogram(instance_ids, ids)
    return _ComparedFrame(frame, pixel, instance, panoptic)


def _masks(path: Path, root: Path, instance_ids: np.ndarray) -> Iterator[tuple[int, float, Patch]]:
    for line in read_instance_list(path, root):
        if is_evaluated(line.label):
            check_png_size(instance_ids.shape, line.mask)
            patch = read_mask(line.mask)
            check_sizes(instance_ids.shape, patch.shape, line.mask)
            yield line.label, line.score, patch
