"""Evaluation of a folder of results with the Cityscapes protocol, with the scores of the official tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.evaluation.cityscapes.official import InstanceLevel, PixelLevel
from seamseg.maps.evaluation.cityscapes.scores import CityscapesScores
from seamseg.maps.evaluation.evaluator import PanopticEvaluator
from seamseg.maps.evaluation.panoptic_quality import check_png_size, check_sizes
from seamseg.maps.formats.cityscapes.instance_files import read_instance_list
from seamseg.maps.formats.cityscapes.labels import (
    EVALUATED,
    INSTANCES_FROM,
    LABEL_OF,
    LABELS,
    LICENSE_PLATES,
    label_of_instance,
)
from seamseg.maps.formats.cityscapes.layout import (
    CityscapesFrame,
    FrameStems,
    check_complete,
    find_frames,
    predictions_by_frame,
)
from seamseg.maps.formats.coco_panoptic import Annotation, CocoPanoptic, read_coco_panoptic, segments_of
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.images import open_mask
from seamseg.maps.panoptic_map import VOID_ID, ClassInfo, SegmentInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden
from seamseg.utils.limits import open_pillow, reading_image
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import ProgressCallback, no_progress

CLASSES = [ClassInfo(label.name, label.id, label.has_instances) for label in EVALUATED]
"""The 19 classes in the order of the benchmark; their ids are the label ids."""

CLASS_OF = {info.id: index for index, info in enumerate(CLASSES)}
"""Dense class by label id."""

_LAYOUT = "panoptic.json (or *_panoptic.json) with its PNGs, pixel/*.png, instance/*.txt with their masks"


@dataclass(frozen=True)
class _ComparedFrame:
    """What was read of a frame: the overlaps of its instances, and the joint histogram of its segments."""

    instance: Mapping[str, Any] | None
    panoptic: tuple[np.ndarray, np.ndarray] | None


def evaluate_cityscapes(
    gt: str | Path,
    pred: str | Path,
    workers: int = 1,
    progress: ProgressCallback = no_progress,
) -> CityscapesScores:
    """Compute the pixel-level, instance-level and panoptic scores of the Cityscapes benchmark, frame by frame.

    All parts of the folder are evaluated; each part must have every frame of the ground truth. The pixel and the
    instance level are scored by `cityscapesscripts`; memory grows with the predicted instances only.

    Parameters
    ----------
    gt : folder of a split, such as `gtFine/val`, with `CITY/*_gtFine_{labelIds,instanceIds}.png`
    pred : folder of results, see :func:`find_results`
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
    done = threaded_map(lambda frame: _compare(frame, results, instance), frames, workers)
    for one, frame in zip(progress(done, len(frames), "comparing"), frames):
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
    instance_ids = open_mask(frame.instance_ids)
    matches = panoptic = None
    if results.pixel is not None or results.instance is not None:
        _check_instances(instance_ids, frame.instance_ids)
    if results.pixel is not None:
        path = results.pixel[frame.stem]
        label_ids = open_mask(frame.label_ids)
        if label_ids.shape != instance_ids.shape:
            raise InputError(f"{frame.label_ids}: differs in size from {frame.instance_ids.name}")
        _check_labels(label_ids, frame.label_ids, "")
        check_png_size(label_ids.shape, path)
        predicted = open_mask(path)
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
    return _ComparedFrame(matches, panoptic)


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


def segments_from_pairs(
    pairs: np.ndarray, counts: np.ndarray, path: Path = Path()
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Extract the true segments of a frame from the joint histogram of its `instanceIds` and another map.

    Each value of `instanceIds`, in the first column, is the id of a segment. A thing label without instance number is a
    crowd. Labels that are not evaluated are void.

    Returns
    -------
    pairs : the same with 0 for void; pairs may occur more than once
    segments : segments in the order of their ids, with areas; classes as in :data:`CLASSES`
    """
    values, index = np.unique(pairs[:, 0], return_inverse=True)
    areas = np.zeros(len(values), np.int64)
    np.add.at(areas, index, counts)
    labels = label_of_instance(values, path)
    segments = []
    for value, label, area in zip(values.tolist(), labels.tolist(), areas.tolist()):
        if label in CLASS_OF:
            crowd = value < INSTANCES_FROM and LABEL_OF[label].has_instances
            segments.append(SegmentInfo(value, CLASS_OF[label], crowd, area))
    kept = np.array([label in CLASS_OF for label in labels.tolist()], bool)
    merged = pairs.copy()
    merged[~kept[index], 0] = VOID_ID
    return merged, segments


@dataclass(frozen=True)
class Results:
    """Predictions of all frames, by the stem of the frame; None for missing parts, whose names are in `not_found`."""

    root: Path
    pixel: Mapping[str, Path] | None
    instance: Mapping[str, Path] | None
    panoptic: CocoPanoptic | None
    annotations: Mapping[str, Annotation]
    not_found: list[str]


def find_results(folder: str | Path, frames: Sequence[CityscapesFrame]) -> Results:
    """Find the results in a folder, or in its subfolder `cityscapes/`, as written by `seamseg predict`.

    It has some of `panoptic.json` or `*_panoptic.json` or `cityscapes_panoptic_*.json`, the PNGs in the folder of the
    same name without `.json`; `pixel/` with maps of label ids; `instance/` with text files.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; a folder of results contains {_LAYOUT}")
    if _count_parts(root / "cityscapes") > _count_parts(root):
        root = root / "cityscapes"
    if not _count_parts(root):
        raise InputError(f"{root}: contains no results; expected {_LAYOUT}")
    jsons = _panoptic_jsons(root)
    if len(jsons) > 1:
        raise InputError(f"{root}: {jsons[0].name} and {jsons[1].name} are both panoptic results; keep one")
    panoptic = read_coco_panoptic(jsons[0]) if jsons else None
    annotations = {} if panoptic is None else _annotations_by_frame(panoptic, frames)
    pixel = predictions_by_frame(root / "pixel", ".png", frames) if (root / "pixel").is_dir() else None
    instance = predictions_by_frame(root / "instance", ".txt", frames) if (root / "instance").is_dir() else None
    present = {"panoptic.json": panoptic, "pixel/": pixel, "instance/": instance}
    return Results(root, pixel, instance, panoptic, annotations, [n for n, part in present.items() if part is None])


def _count_parts(root: Path) -> int:
    return bool(_panoptic_jsons(root)) + (root / "pixel").is_dir() + (root / "instance").is_dir()


def _panoptic_jsons(root: Path) -> list[Path]:
    names = ("panoptic.json", "*_panoptic.json", "cityscapes_panoptic_*.json")
    return sorted({path for name in names for path in root.glob(name) if not is_hidden(path.name)})


def _annotations_by_frame(panoptic: CocoPanoptic, frames: Sequence[CityscapesFrame]) -> Mapping[str, Annotation]:
    """Find the annotation of each frame: by its `image_id`, or by a path of an image as `image_id`."""
    stems = FrameStems(frame.stem for frame in frames)
    found: dict[str, Annotation] = {}
    exact = {str(a.image_id): a for a in panoptic.annotations}
    for annotation in panoptic.annotations:
        stem = stems.of(str(annotation.image_id).rpartition("/")[2])
        if stem is None or stem in exact:
            continue
        if stem in found:
            raise InputError(
                f"{panoptic.path}: two predictions for {stem}: the second has image_id {annotation.image_id}"
            )
        found[stem] = annotation
    found.update((frame.stem, exact[frame.stem]) for frame in frames if frame.stem in exact)
    check_complete((frame.stem for frame in frames), found, f"{panoptic.path}: no annotation with image_id {{}}")
    unknown = {c.id for c in panoptic.categories or []} - set(CLASS_OF)
    if unknown:
        raise InputError(
            f"{panoptic.path}: category {min(unknown)} is not an evaluated Cityscapes label; use label ids, 7 to 33"
        )
    return found
