"""Evaluation of a folder of results with the Cityscapes protocol, with the scores of the official tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.evaluation.cityscapes.official import InstanceLevel, PixelLevel
from seamseg.evaluation.cityscapes.results import CLASS_OF, CLASSES, Results, find_results, segments_from_pairs
from seamseg.evaluation.cityscapes.scores import CityscapesScores
from seamseg.evaluation.evaluator import PanopticEvaluator
from seamseg.evaluation.panoptic_quality import check_png_size, check_sizes
from seamseg.formats.cityscapes.instance_files import read_instance_list
from seamseg.formats.cityscapes.labels import (
    INSTANCES_FROM,
    LABEL_OF,
    LABELS,
    LICENSE_PLATES,
    label_of_instance,
    read_map,
)
from seamseg.formats.cityscapes.layout import CityscapesFrame, find_frames
from seamseg.formats.coco_panoptic import segments_of
from seamseg.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError
from seamseg.utils.limits import open_pillow, reading_image
from seamseg.utils.parallel import threaded_map


@dataclass(frozen=True)
class _ComparedFrame:
    """A frame whose files were checked: the overlaps of its instances, and the joint histogram of its segments."""

    frame: CityscapesFrame
    instance: Mapping[str, Any] | None
    panoptic: tuple[np.ndarray, np.ndarray] | None


def evaluate_cityscapes(
    gt: str | Path,
    pred: str | Path,
    workers: int = 1,
    progress: Callable[[Iterable[Any], int, str], Iterable[Any]] | None = None,
) -> CityscapesScores:
    """Compute the pixel-level, instance-level and panoptic scores of the Cityscapes benchmark, frame by frame.

    All parts of the folder are evaluated; each part must have every frame of the ground truth. The pixel and the
    instance level are scored by `cityscapesscripts`; memory grows with the predicted instances only.

    Parameters
    ----------
    gt : folder of a split, such as `gtFine/val`, with `CITY/*_gtFine_{labelIds,instanceIds}.png`
    pred : folder of results, see :func:`seamseg.evaluation.cityscapes.results.find_results`
    workers : threads that decode and compare
    progress : wraps the frames, `progress(iterable, total, description)`

    Raises
    ------
    InputError
        if a file is missing or broken, a frame has no prediction or several, sizes differ, a label is unknown, or
        `cityscapesscripts` is not installed and there are results of its levels
    """
    frames = find_frames(gt)
    results = find_results(pred, frames)
    pixel = None if results.pixel is None else PixelLevel()
    instance = None if results.instance is None else InstanceLevel(results.root)
    panoptic = PanopticEvaluator(CLASSES)
    done: Iterable[_ComparedFrame] = threaded_map(lambda frame: _compare(frame, results, instance), frames, workers)
    for one in done if progress is None else progress(done, len(frames), "comparing"):
        frame = one.frame
        if pixel is not None and results.pixel is not None:
            pixel.add(frame, results.pixel[frame.stem])
        if instance is not None and one.instance is not None:
            instance.add(one.instance)
        if one.panoptic is not None and results.panoptic is not None:
            pairs, counts = one.panoptic
            pairs, gt_segments = segments_from_pairs(pairs, counts, frame.instance_ids)
            pred_segments = segments_of(results.annotations[frame.stem], CLASS_OF, results.panoptic.path)
            panoptic.add_pairs(pairs, counts, gt_segments, pred_segments, frame.stem)
    return CityscapesScores(
        pixel=None if pixel is None else pixel.scores(),
        instance=None if instance is None else instance.scores(),
        panoptic=None if results.panoptic is None else panoptic.scores(),
        not_found=results.not_found,
    )


def _compare(frame: CityscapesFrame, results: Results, instance: InstanceLevel | None) -> _ComparedFrame:
    """Check the files of a frame, and count the overlaps of its instances and segments."""
    instance_ids = read_map(frame.instance_ids, "ground truth instanceIds")
    matches = panoptic = None
    if results.pixel is not None or results.instance is not None:
        _check_instances(instance_ids, frame.instance_ids)
    if results.pixel is not None:
        path = results.pixel[frame.stem]
        label_ids = read_map(frame.label_ids, "ground truth labelIds")
        if label_ids.shape != instance_ids.shape:
            raise InputError(f"{frame.label_ids}: differs in size from {frame.instance_ids.name}")
        _check_labels(label_ids, frame.label_ids, "")
        check_png_size(label_ids.shape, path)
        predicted = read_map(path, "predicted label ids")
        check_sizes(label_ids.shape, predicted.shape, path)
        _check_labels(predicted, path, "; predictions have the label ids 0 to 33 (7 road ... 33 bicycle), 0 for none")
    if results.instance is not None and instance is not None:
        _check_masks(results.instance[frame.stem], results.root, instance_ids.shape)
        matches = instance.match(frame, results.instance[frame.stem])
    if results.panoptic is not None:
        annotation = results.annotations[frame.stem]
        path = results.panoptic.png(annotation)
        check_png_size(instance_ids.shape, path)
        ids = results.panoptic.read_ids(annotation)
        check_sizes(instance_ids.shape, ids.shape, path)
        panoptic = joint_histogram(instance_ids, ids)
    return _ComparedFrame(frame, matches, panoptic)


def _check_masks(path: Path, root: Path, shape: tuple[int, ...]) -> None:
    """Check the list of the instances of a frame, and the sizes of their masks before anything decodes them."""
    for line in read_instance_list(path, root):
        if LABEL_OF[line.label].evaluated and LABEL_OF[line.label].has_instances:
            with reading_image(line.mask, "no such mask", "not a readable mask"), open_pillow(line.mask) as image:
                check_sizes(shape, (image.height, image.width), line.mask)


def _check_labels(ids: np.ndarray, path: Path, hint: str) -> None:
    if (highest := int(ids.max())) >= len(LABELS):
        raise InputError(f"{path}: {highest} is not a Cityscapes label id{hint}")


def _check_instances(ids: np.ndarray, path: Path) -> None:
    values = np.unique(ids)
    for value, label in zip(values.tolist(), label_of_instance(values, path).tolist()):
        if value == LICENSE_PLATES["instanceIds"]:
            raise InputError(f"{path}: {value}, a licence plate, is not a value that cityscapesscripts takes; use 0")
        if value >= INSTANCES_FROM and LABEL_OF[label].evaluated and not LABEL_OF[label].has_instances:
            raise InputError(f"{path}: {value} is an instance of {LABEL_OF[label].name}, a class without instances")
