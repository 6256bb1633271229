"""Score predictions against ground truth, both in COCO panoptic files."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from seamseg.evaluation.evaluator import PanopticEvaluator
from seamseg.evaluation.panoptic_quality import check_sizes
from seamseg.evaluation.record import (
    Evaluation,
    ImageRecord,
    MapFiles,
    begin_evaluation,
    image_record,
    write_images,
    write_summary,
)
from seamseg.evaluation.scores import PanopticScores
from seamseg.formats.coco_panoptic import Annotation, CocoPanoptic, read_coco_panoptic, segments_of
from seamseg.idmaps.id_runs import joint_histogram_of_runs
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import threaded_map


@dataclass(frozen=True)
class _Compared:
    gt: Annotation
    pred: Annotation
    size: tuple[int, ...]
    pairs: np.ndarray
    counts: np.ndarray


def evaluate_panoptic_json(
    gt_json: str | Path,
    pred_json: str | Path,
    gt_folder: str | Path | None = None,
    pred_folder: str | Path | None = None,
    workers: int = 1,
    legacy: bool = False,
    progress: Callable[[Iterable[Any], int, str], Iterable[Any]] | None = None,
    out: str | Path | None = None,
    photos: str | Path | None = None,
) -> PanopticScores:
    """Compare two COCO panoptic files image by image, in constant memory beside the two JSONs.

    Every image of the ground truth must have a prediction; predictions of other images are ignored. A prediction
    belongs to an image if it has its `image_id`, or, where none has, if its `image_id` is the name of the photo
    without its ending (what `seamseg predict` knows of a photo), or is the only one to be so but for folders and the
    `_leftImg8bit` of Cityscapes.

    Parameters
    ----------
    gt_json, pred_json : the JSONs; categories are those of the ground truth
    gt_folder, pred_folder : of the PNGs, by default the JSON's path without `.json`
    workers : threads that decode and compare
    legacy : count as the original program did
    progress : wraps the images, `progress(iterable, total, description)`
    out : evaluation folder to write, see :mod:`seamseg.evaluation.record`; the maps stay where they are. Not with
        `legacy`
    photos : folder of the photos, which the evaluation folder only mentions

    Raises
    ------
    InputError
        if a file is missing or broken, an image has no prediction, sizes differ, ids of a map and its JSON differ, or a
        category is unknown
    """
    if legacy and out is not None:
        raise InputError(f"{out}: not with legacy metrics, since an evaluation folder is of the official kind")
    gt = read_coco_panoptic(gt_json, gt_folder)
    pred = read_coco_panoptic(pred_json, pred_folder)
    if not gt.categories:
        raise InputError(f"{gt.path}: the ground truth has no `categories`")
    if not gt.annotations:
        raise InputError(f"{gt.path}: the ground truth has no annotated image")
    _compare_names(gt, pred)
    class_of = {c.id: index for index, c in enumerate(gt.categories)}
    partner = _partners(gt, pred)

    def compare(annotation: Annotation) -> _Compared:
        other = partner[annotation.image_id]
        gt_ids, pred_ids = gt.read_runs(annotation), pred.read_runs(other)
        size = gt_ids.height, gt_ids.width
        check_sizes(size, (pred_ids.height, pred_ids.width), pred.folder / other.file_name)
        return _Compared(annotation, other, size, *joint_histogram_of_runs(gt_ids, pred_ids))

    evaluator = PanopticEvaluator(gt.categories, legacy)
    done: Iterable[_Compared] = threaded_map(compare, gt.annotations, workers)
    if progress is not None:
        done = progress(done, len(gt.annotations), "comparing")

    def records() -> Iterator[ImageRecord]:
        for one in done:
            gt_segments = segments_of(one.gt, class_of, gt.path)
            pred_segments = segments_of(one.pred, class_of, pred.path)
            alone = PanopticEvaluator(evaluator.classes, legacy)
            found = alone.add_pairs(one.pairs, one.counts, gt_segments, pred_segments, str(one.gt.image_id))
            evaluator.merge(alone)
            if out is not None:
                photo, names = gt.photo_names.get(one.gt.image_id), (one.gt.file_name, one.pred.file_name)
                yield image_record(found, alone.scores(), one.size, one.gt.image_id, photo, *names)

    if out is None:
        deque(records(), maxlen=0)
        return evaluator.scores()
    begin_evaluation(Path(out), own_maps=False)
    write_images(Path(out), records())
    scores = evaluator.scores()
    maps = MapFiles(gt.path, gt.folder), MapFiles(pred.path, pred.folder)
    write_summary(
        Evaluation(
            Path(out),
            f"{pred.path.name} against {gt.path.name}",
            scores.to_json(),
            evaluator.classes,
            [gt.colours.get(c.id) for c in evaluator.classes],
            evaluator.confusion.counts,
            *maps,
            None if photos is None else Path(photos),
        )
    )
    return scores


def _compare_names(gt: CocoPanoptic, pred: CocoPanoptic) -> None:
    true_name = {c.id: c.name for c in gt.categories or []}
    for c in pred.categories or []:
        if c.name != true_name.get(c.id, c.name):
            warnings.warn(
                f"{pred.path}: category {c.id} is called {c.name!r} there and {true_name[c.id]!r} in {gt.path}; "
                "categories are compared by their ids",
                stacklevel=3,
            )
            return


def _partners(gt: CocoPanoptic, pred: CocoPanoptic) -> Mapping[int | str, Annotation]:
    by_id = {a.image_id: a for a in pred.annotations}
    by_name: dict[str, list[Annotation]] = {}
    for annotation in pred.annotations:
        by_name.setdefault(_bare(str(annotation.image_id)), []).append(annotation)
    partner: dict[int | str, Annotation] = {}
    for annotation in gt.annotations:
        if annotation.image_id in partner:
            raise InputError(f"{gt.path}: image {annotation.image_id} is annotated twice")
        name = gt.photo_names.get(annotation.image_id, annotation.file_name)
        photo = PurePosixPath(name)
        stem = str(photo.with_suffix("")) if photo.name else name
        found = by_id.get(annotation.image_id) or by_id.get(stem)
        if found is None and len(alike := by_name.get(_bare(stem), [])) == 1:
            found = alike[0]
        if found is None:
            missing = sum(a.image_id not in by_id for a in gt.annotations)
            there = f"; there is one for {pred.annotations[0].image_id}" if pred.annotations else ""
            raise InputError(
                f"{pred.path}: no prediction for image {annotation.image_id} of {gt.path.name}"
                + (f" (nor for {missing - 1} more)" if missing > 1 else "")
                + there
            )
        partner[annotation.image_id] = found
    return partner


def _bare(name: str) -> str:
    """The name of a photo without folders, and without what Cityscapes puts behind it."""
    return name.rpartition("/")[2].removesuffix("_leftImg8bit")
