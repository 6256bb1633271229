"""Score a folder of results against the ground truth of Cityscapes, as the official tools do."""

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
    overlaps_of_frame,
    wanted,
)
from seamseg.evaluation.cityscapes.pixel_level import Histogram, PixelLevel
from seamseg.evaluation.cityscapes.results import CLASS_OF, CLASSES, Results, find_results, segments_from_pairs
from seamseg.evaluation.cityscapes.scores import CityscapesScores
from seamseg.evaluation.evaluator import PanopticEvaluator
from seamseg.evaluation.panoptic_quality import check_sizes
from seamseg.formats.cityscapes.instance_files import Patch, read_instance_list, read_mask
from seamseg.formats.cityscapes.labels import read_map
from seamseg.formats.cityscapes.layout import Frame, find_frames
from seamseg.formats.coco_panoptic import segments_of
from seamseg.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import threaded_map


@dataclass(frozen=True)
class _Compared:
    """What one frame gives: small, whatever its size."""

    frame: Frame
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
    """Pixel level, instance level and panoptic scores of the Cityscapes benchmark, frame by frame.

    All that the folder holds is scored; each part must have every frame of the ground truth. Memory does not grow with
    the frames, but for ten numbers an instance that was found and what a panoptic JSON takes.

    Parameters
    ----------
    gt : folder of a split, as `gtFine/val`, with `CITY/*_gtFine_{labelIds,instanceIds}.png`
    pred : folder of results, see :func:`seamseg.evaluation.cityscapes.results.find_results`
    workers : threads that decode and compare
    progress : wraps the frames, `progress(iterable, total, description)`
    distances : of the true instances of a frame, by its stem (`<city>_<sequence>_<frame>`); without it AP100m, AP50m
        and AP50_50m are NaN

    Raises
    ------
    InputError
        if a file is missing or broken, a frame has no prediction or several, sizes differ, or a label is unknown
    """
    frames = find_frames(gt)
    results = find_results(pred, frames)
    pixel, instance = PixelLevel(), InstanceLevel(distances is not None)
    panoptic = PanopticEvaluator(CLASSES)

    def compare(frame: Frame) -> _Compared:
        return _compare(frame, results, None if distances is None else distances(frame.stem))

    done: Iterable[_Compared] = threaded_map(compare, frames, workers)
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


def _compare(frame: Frame, results: Results, distances: Distances | None) -> _Compared:
    instance_ids = read_map(frame.instance_ids, "ground truth instanceIds")
    pixel = instance = panoptic = None
    if results.pixel is not None:
        path = results.pixel[frame.stem]
        label_ids = read_map(frame.label_ids, "ground truth labelIds")
        if label_ids.shape != instance_ids.shape:
            raise InputError(f"{frame.label_ids}: is not of the size of {frame.instance_ids.name}")
        predicted = read_map(path, "predicted label ids")
        check_sizes(label_ids.shape, predicted.shape, path)
        pixel = joint_histogram(label_ids, predicted), joint_histogram(instance_ids, predicted)
    if results.instance is not None:
        masks = _masks(results.instance[frame.stem], results.root, instance_ids)
        instance = overlaps_of_frame(instance_ids, masks, distances, frame.instance_ids)
    if results.panoptic is not None:
        annotation = results.annotations[frame.stem]
        ids = results.panoptic.read_ids(annotation)
        check_sizes(instance_ids.shape, ids.shape, results.panoptic.folder / annotation.file_name)
        panoptic = joint_histogram(instance_ids, ids)
    return _Compared(frame, pixel, instance, panoptic)


def _masks(path: Path, root: Path, instance_ids: np.ndarray) -> Iterator[tuple[int, float, Patch]]:
    for line in read_instance_list(path, root):
        if wanted(line.label):
            patch = read_mask(line.mask)
            check_sizes(instance_ids.shape, patch.shape, line.mask)
            yield line.label, line.score, patch
