"""Evaluation of a folder of results with the Cityscapes protocol, with the scores of the official tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.evaluation.cityscapes.official import CityscapesScores, InstanceLevel, PixelLevel
from seamseg.maps.evaluation.evaluator import PanopticEvaluator
from seamseg.maps.evaluation.panoptic_quality import check_sizes
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.formats.cityscapes.labels import (
    EVALUATED,
    INSTANCES_FROM,
    LABEL_OF,
    LICENSE_PLATES,
    label_of_instance,
)
from seamseg.maps.formats.cityscapes.layout import CityscapesFrame, FrameStems, check_complete, find_frames
from seamseg.maps.formats.coco_panoptic import Annotation, read_coco_panoptic, segments_of
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.images import open_mask
from seamseg.maps.panoptic_map import VOID_ID, ClassInfo, SegmentInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import ProgressCallback, no_progress

CLASSES = [ClassInfo(label.name, label.id, label.has_instances) for label in EVALUATED]
"""The 19 classes in the order of the benchmark; their ids are the label ids."""

CLASS_OF = {info.id: index for index, info in enumerate(CLASSES)}
"""Dense class by label id."""

_LAYOUT = "panoptic.json (or *_panoptic.json) with its PNGs, pixel/*.png, instance/*.txt with their masks"


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
    pred : folder of results, see :func:`find_levels`
    workers : threads that decode and compare
    progress : wraps the frames, `progress(iterable, total, description)`

    Raises
    ------
    InputError
        if a file is missing or broken, a frame has no prediction or several, sizes differ, a label is unknown, or
        `cityscapesscripts` is not installed and there are results of its levels
    """
    frames = find_frames(gt)
    levels = find_levels(pred, frames)
    present = [level for level in levels.values() if level is not None]

    def read(frame: CityscapesFrame) -> list[Any]:
        ids = open_mask(frame.instance_ids)
        if levels["pixel/"] is not None or levels["instance/"] is not None:
            path, values = frame.instance_ids, np.unique(ids)
            for value, label in zip(values.tolist(), label_of_instance(values, path).tolist()):
                if value == LICENSE_PLATES["instanceIds"]:
                    raise InputError(
                        f"{path}: {value}, a licence plate, is not a value that cityscapesscripts takes; use 0"
                    )
                if value >= INSTANCES_FROM and LABEL_OF[label] in EVALUATED and not LABEL_OF[label].has_instances:
                    name = LABEL_OF[label].name
                    raise InputError(f"{path}: {value} is an instance of {name}, a class without instances")
        return [level.read(frame, ids) for level in present]

    done = threaded_map(read, frames, workers)
    for parts, frame in zip(progress(done, len(frames), "comparing"), frames):
        for level, part in zip(present, parts):
            level.add(frame, part)
    panoptic, pixel, instance = (None if level is None else level.scores() for level in levels.values())
    return CityscapesScores(pixel, instance, panoptic, [name for name, level in levels.items() if level is None])


class PanopticLevel:
    """Panoptic evaluation of a stream of frames; constant memory."""

    def __init__(self, path: Path, frames: Sequence[CityscapesFrame]) -> None:
        self._files = read_coco_panoptic(path)
        stems = FrameStems(frame.stem for frame in frames)
        self._annotations: dict[str, Annotation] = {}
        for annotation in self._files.annotations:
            # the image_id may also be a path of the image
            stem = stems.of(str(annotation.image_id).rpartition("/")[2])
            if stem in self._annotations:
                number = annotation.image_id
                raise InputError(f"{path}: two predictions for {stem}: the second has image_id {number}")
            if stem is not None:
                self._annotations[stem] = annotation
        check_complete((f.stem for f in frames), self._annotations, f"{path}: no annotation with image_id {{}}")
        self._evaluator = PanopticEvaluator(CLASSES)

    def read(self, frame: CityscapesFrame, instance_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the joint histogram of the true instances of a frame and its segments; may run in any thread."""
        path = self._files.png(self._annotations[frame.stem])
        ids = read_id_png(path)
        check_sizes(instance_ids.shape, ids.shape, path)
        return joint_histogram(instance_ids, ids)

    def add(self, frame: CityscapesFrame, part: tuple[np.ndarray, np.ndarray]) -> None:
        """Add a frame."""
        pairs, counts = part
        pairs, gt_segments = _segments_from_pairs(pairs, counts, frame.instance_ids)
        pred_segments = segments_of(self._annotations[frame.stem], CLASS_OF, self._files.path)
        self._evaluator.add_pairs(pairs, counts, gt_segments, pred_segments, frame.stem)

    def scores(self) -> PanopticScores:
        """Compute the scores of all frames so far."""
        return self._evaluator.scores()


def _segments_from_pairs(pairs: np.ndarray, counts: np.ndarray, path: Path) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Return the true segments of a frame, given the joint histogram of its `instanceIds` and another map.

    Each value of `instanceIds`, in the first column, is the id of a segment, with its area. A thing label without
    instance number is a crowd. Labels that are not evaluated are void: also returns the pairs with 0 for them, where
    pairs may occur more than once.
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


def find_levels(folder: str | Path, frames: Sequence[CityscapesFrame]) -> dict[str, Any]:
    """Find the results in a folder, or in its subfolder `cityscapes/`, as written by `seamseg predict`.

    It has some of `panoptic.json` or `*_panoptic.json` or `cityscapes_panoptic_*.json`, the PNGs in the folder of the
    same name without `.json`; `pixel/` with maps of label ids; `instance/` with text files. Returns the evaluation of
    each part, None for those that are missing.
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
    return {
        "panoptic.json": PanopticLevel(jsons[0], frames) if jsons else None,
        "pixel/": PixelLevel(root / "pixel", frames) if (root / "pixel").is_dir() else None,
        "instance/": InstanceLevel(root, frames) if (root / "instance").is_dir() else None,
    }


def _count_parts(root: Path) -> int:
    return bool(_panoptic_jsons(root)) + (root / "pixel").is_dir() + (root / "instance").is_dir()


def _panoptic_jsons(root: Path) -> list[Path]:
    names = ("panoptic.json", "*_panoptic.json", "cityscapes_panoptic_*.json")
    return sorted({path for name in names for path in root.glob(name) if not is_hidden(path.name)})
