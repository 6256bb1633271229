"""Evaluation of predictions against ground truth, both as COCO panoptic files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from seamseg.maps.evaluation.evaluator import Comparison, PanopticEvaluator
from seamseg.maps.evaluation.panoptic_quality import check_sizes
from seamseg.maps.evaluation.record import (
    Evaluation,
    ImageRecord,
    MapFiles,
    begin_evaluation,
    image_record,
    write_images,
    write_summary,
)
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.formats.coco_panoptic import Annotation, CocoPanoptic, read_coco_panoptic, segments_of
from seamseg.maps.formats.id_png import read_id_runs
from seamseg.maps.idmaps.id_runs import joint_histogram_of_runs
from seamseg.utils.errors import InputError
from seamseg.utils.output import warn
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import ProgressCallback, no_progress

_MOST_CATEGORIES = 4096


def evaluate_panoptic_json(
    gt: str | Path | MapFiles,
    pred: str | Path | MapFiles,
    workers: int = 1,
    legacy: bool = False,
    progress: ProgressCallback = no_progress,
    out: str | Path | None = None,
    photos: str | Path | None = None,
) -> PanopticScores:
    """Evaluate a COCO panoptic file, image by image; memory does not grow with the images except for the two JSONs.

    Every image of the ground truth must have a prediction; predictions of other images are ignored. A prediction
    belongs to an image if it has its `image_id`; otherwise, if its `image_id` is the file name of the image without its
    ending, as written by `seamseg predict`; otherwise, if it is the only one with this name apart from folders and the
    `_leftImg8bit` of Cityscapes.

    Parameters
    ----------
    gt, pred : JSON files; by default the PNGs are in the folder of the same name without `.json`. The categories are
        taken from the ground truth
    workers : threads that decode and compare
    legacy : count like the original program, see
        :class:`seamseg.maps.evaluation.panoptic_quality.LegacyPanopticQuality`
    progress : wraps the images, `progress(iterable, total, description)`
    out : evaluation folder to write, see :mod:`seamseg.maps.evaluation.record`, without copies of the maps; not with
        `legacy`
    photos : folder of the images, to which the evaluation folder refers

    Raises
    ------
    InputError
        if a file is missing or broken, an image has no prediction, sizes differ, ids of a map and its JSON differ, or a
        category is unknown
    """
    files = _FilePair(_read(gt), _read(pred))
    evaluator = PanopticEvaluator(files.gt.categories or [], legacy)
    annotations = files.gt.annotations
    compared = progress(threaded_map(files.compare, annotations, workers), len(annotations), "comparing")
    if out is None:
        for image in compared:
            files.evaluate(image, evaluator)
        return evaluator.scores()
    folder = Path(out)
    begin_evaluation(folder)
    write_images(folder, (files.record(image, evaluator) for image in compared))
    summary = Evaluation(
        folder,
        f"{files.pred.path.name} against {files.gt.path.name}",
        evaluator.scores().to_json(),
        evaluator.classes,
        [files.gt.colours.get(c.id) for c in evaluator.classes],
        evaluator.confusion.counts,
        MapFiles(files.gt.path, files.gt.folder),
        MapFiles(files.pred.path, files.pred.folder),
        None if photos is None else Path(photos),
    )
    write_summary(summary)
    return evaluator.scores()


def _read(source: str | Path | MapFiles) -> CocoPanoptic:
    if isinstance(source, MapFiles):
        return read_coco_panoptic(source.json, source.folder)
    return read_coco_panoptic(source)


@dataclass(frozen=True)
class _ComparedImage:
    """The annotations of an image and the joint histogram of its two maps."""

    gt: Annotation
    pred: Annotation
    size: tuple[int, int]
    pairs: np.ndarray
    counts: np.ndarray


class _FilePair:
    """Ground truth and prediction, with a prediction for each image of the ground truth."""

    def __init__(self, gt: CocoPanoptic, pred: CocoPanoptic) -> None:
        if not gt.categories:
            raise InputError(f"{gt.path}: the ground truth has no `categories`")
        if len(gt.categories) > _MOST_CATEGORIES:  # each pair of them is counted
            raise InputError(f"{gt.path}: {len(gt.categories)} categories, at most {_MOST_CATEGORIES} are supported")
        if not gt.annotations:
            raise InputError(f"{gt.path}: the ground truth has no annotated image")
        names = {c.id: c.name for c in gt.categories}
        other = next((c for c in pred.categories or [] if c.name != names.get(c.id, c.name)), None)
        if other is not None:
            warn(
                f"{pred.path}: category {other.id} is called {other.name!r}, but {names[other.id]!r} in {gt.path}; "
                "categories are compared by their ids",
                stacklevel=3,
            )
        self.gt, self.pred = gt, pred
        self._class_of = {c.id: index for index, c in enumerate(gt.categories)}
        self._prediction_of = _match_images(gt, pred)

    def compare(self, annotation: Annotation) -> _ComparedImage:
        """Read the two maps of an image and count their pairs of ids."""
        prediction = self._prediction_of[annotation.image_id]
        pred_path = self.pred.png(prediction)
        gt_ids, pred_ids = read_id_runs(self.gt.png(annotation)), read_id_runs(pred_path)
        size = gt_ids.height, gt_ids.width
        check_sizes(size, (pred_ids.height, pred_ids.width), pred_path)
        return _ComparedImage(annotation, prediction, size, *joint_histogram_of_runs(gt_ids, pred_ids))

    def evaluate(self, image: _ComparedImage, evaluator: PanopticEvaluator) -> Comparison:
        """Add an image to an evaluator; return its comparison."""
        gt_segments = segments_of(image.gt, self._class_of, self.gt.path)
        pred_segments = segments_of(image.pred, self._class_of, self.pred.path)
        return evaluator.add_pairs(image.pairs, image.counts, gt_segments, pred_segments, str(image.gt.image_id))

    def record(self, image: _ComparedImage, evaluator: PanopticEvaluator) -> ImageRecord:
        """Add an image to an evaluator; return its record."""
        single = PanopticEvaluator(evaluator.classes)
        comparison = self.evaluate(image, single)
        evaluator.merge(single)
        image_id = image.gt.image_id
        photo, names = self.gt.image_names.get(image_id), (image.gt.file_name, image.pred.file_name)
        return image_record(comparison, single.scores(), image.size, image_id, photo, *names)


def _match_images(gt: CocoPanoptic, pred: CocoPanoptic) -> Mapping[int | str, Annotation]:
    by_id = {a.image_id: a for a in pred.annotations}
    by_name: dict[str, list[Annotation]] = {}
    for annotation in pred.annotations:
        by_name.setdefault(_image_stem(str(annotation.image_id)), []).append(annotation)
    found: dict[int | str, Annotation] = {}
    missing = []
    for annotation in gt.annotations:
        if annotation.image_id in found:
            raise InputError(f"{gt.path}: image {annotation.image_id} is annotated twice")
        name = gt.image_names.get(annotation.image_id, annotation.file_name)
        path = PurePosixPath(name)
        stem = str(path.with_suffix("")) if path.name else name
        candidates = by_name.get(_image_stem(stem), [])
        only = candidates[0] if len(candidates) == 1 else None
        prediction = by_id.get(annotation.image_id) or by_id.get(stem) or only
        if prediction is None:
            missing.append(annotation.image_id)
        else:
            found[annotation.image_id] = prediction
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        example = f"; the first prediction is for image {pred.annotations[0].image_id!r}" if pred.annotations else ""
        raise InputError(f"{pred.path}: no prediction for image {missing[0]!r} of {gt.path.name}{others}{example}")
    return found


def _image_stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix("_leftImg8bit")
