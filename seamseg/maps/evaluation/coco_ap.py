"""Average precision of boxes and masks by pycocotools, from id maps and detections.

All instances of the ground truth are evaluated, whatever their size. Crowds and void are neither matched nor missed;
detections on a crowd are ignored. The 100 best detections per class and image are evaluated.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.maps.evaluation.scores import AP_NUMBERS, APScores, ClassAP, InstanceScores
from seamseg.maps.idmaps.histogram import ArrayLike, as_array
from seamseg.maps.idmaps.id_runs import Runs, box_of_runs, runs_by_id, union_of_runs
from seamseg.maps.panoptic_map import ClassInfo
from seamseg.maps.pasting import paste_detections
from seamseg.maps.predictions import ArrayPrediction


@dataclass(frozen=True)
class Instance:
    """An instance of an image.

    `category` is the thing class, from 0; `box` is (x, y, width, height) in pixels, as in COCO. `counts` is the mask as
    COCO's compressed run lengths, None without a mask; `score` is None for ground truth.
    """

    category: int
    box: tuple[float, float, float, float]
    counts: bytes | None
    score: float | None = None
    iscrowd: bool = False


@dataclass(frozen=True)
class ImageInstances:
    """Ground truth and detections of an image of `size` (height, width)."""

    name: str
    size: tuple[int, int]
    ground_truth: list[Instance]
    detections: list[Instance]


def image_instances(
    classes: Sequence[ClassInfo],
    mask: ArrayLike,
    cat: Sequence[int],
    iscrowd: Sequence[int],
    prediction: ArrayPrediction,
    name: str,
    by_nearest: bool = False,
) -> ImageInstances:
    """Return ground truth and detections of an image for :func:`average_precision`, masks as run lengths.

    `classes` have stuff first; `mask` are `L x H x W` instance ids, to whose size the detections are resized (see
    :func:`seamseg.maps.pasting.paste_detections`), with class `cat` (255 void) and crowd flag of each id, entry 0 void.
    `name` is unique: images are evaluated in the order of their names, which defines the order of equal scores.
    """
    size = int(mask.shape[-2]), int(mask.shape[-1])
    num_stuff = sum(not c.isthing for c in classes)
    ground_truth = instances_of_map(mask, cat, iscrowd, num_stuff, len(classes))
    return ImageInstances(name, size, ground_truth, instances_of_prediction(prediction, size, by_nearest))


def instances_of_map(
    mask: ArrayLike, cat: Sequence[int], iscrowd: Sequence[int], num_stuff: int, num_classes: int
) -> list[Instance]:
    """Extract the things of an id map, in the order of their ids; arguments as :func:`image_instances`."""
    layers = as_array(mask).reshape(-1, *mask.shape[-2:])
    height, width = layers.shape[1:]
    runs: dict[int, list[Runs]] = {}
    for layer in layers:
        for i, of_layer in runs_by_id(layer.T).items():
            runs.setdefault(i, []).append(of_layer)
    instances = []
    for i in sorted(runs):
        if i >= len(cat) or not num_stuff <= int(cat[i]) < num_classes:
            continue
        start, length = union_of_runs(runs[i])
        x0, y0, w, h = box_of_runs(start, length, height)
        counts = _encode(np.stack((start, start + length), axis=1).ravel(), (height, width))
        instances.append(Instance(int(cat[i]) - num_stuff, (x0, y0, w, h), counts, None, bool(iscrowd[i])))
    return instances


def instances_of_prediction(
    prediction: ArrayPrediction, size: tuple[int, int], by_nearest: bool = False
) -> list[Instance]:
    """Resize the detections of a network to `size` (height, width); masks are pasted one by one."""
    instances = []
    for detection in paste_detections(prediction, size, by_nearest):
        y0, x0, y1, x1 = detection.box
        counts = None if detection.crop is None else encode_crop(detection.crop, detection.corner, size)
        instances.append(Instance(detection.category, (x0, y0, x1 - x0, y1 - y0), counts, detection.score))
    return instances


def encode_crop(crop: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> bytes:
    """Encode a mask, given by `crop` (bool) at `corner` (y, x), as COCO's compressed run lengths.

    COCO's runs go down the columns, so only the columns of the crop are read.
    """
    (y, x), (rows, columns) = corner, crop.shape
    height = size[0]
    strip = np.zeros((columns, height), bool)
    strip[:, y : y + rows] = crop.T
    flat = strip.ravel()
    return _encode(np.flatnonzero(np.diff(flat, prepend=False, append=False)) + height * x, size)


def _encode(edges: np.ndarray, size: tuple[int, int]) -> bytes:
    from pycocotools import mask  # not for the commands that only import this module

    height, width = size
    ends = edges if edges.size and edges[-1] == height * width else np.append(edges, height * width)
    counts = np.diff(ends, prepend=0).tolist()
    encoded: bytes = mask.frPyObjects({"counts": counts, "size": size}, height, width)["counts"]
    return encoded


def average_precision(
    classes: Sequence[ClassInfo], images: Iterable[ImageInstances], with_masks: bool | None = None
) -> InstanceScores:
    """Compute the scores of images, each given once, in any order, also those without instances.

    `classes` have stuff first. `with_masks` scores masks, which all detections must then have; None: if they all do.
    """
    things = [c for c in classes if c.isthing]
    ordered = sorted(images, key=lambda image: image.name)
    if with_masks is None:
        with_masks = all(i.counts is not None for image in ordered for i in image.detections)
    box = _evaluate("bbox", things, ordered)
    return InstanceScores(box, _evaluate("segm", things, ordered) if with_masks else None)


def _evaluate(kind: str, things: Sequence[ClassInfo], images: Sequence[ImageInstances]) -> APScores:
    from pycocotools.cocoeval import COCOeval

    # pycocotools prints to stdout
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth, detections = (_database(kind, things, images, part) for part in ("ground_truth", "detections"))
        evaluation = COCOeval(ground_truth, detections, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    # thresholds x recalls x classes x sizes x limits; the first size is "all", the last limit 100
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    per_class = []
    for k, info in enumerate(things):
        known = precision[:, :, k][precision[:, :, k] > -1]
        per_class.append(ClassAP(info, float(known.mean()) if known.size else float("nan")))
    numbers = [float(value) if value > -1 else float("nan") for value in evaluation.stats]
    named: dict[str, Any] = dict(zip(AP_NUMBERS, numbers))
    return APScores(**named, per_class=per_class)


def _database(kind: str, things: Sequence[ClassInfo], images: Sequence[ImageInstances], part: str) -> Any:
    """Build the pycocotools object of the ground truth or the detections; its own reader rejects an empty list."""
    from pycocotools import mask
    from pycocotools.coco import COCO

    annotations: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        for instance in getattr(image, part):
            entry = {
                # pycocotools uses id 0 for "not matched"
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": instance.category + 1,
                "iscrowd": int(instance.iscrowd),
                "bbox": list(instance.box),
            }
            if instance.score is not None:
                entry["score"] = instance.score
            # ground truth always has the area of its mask, a detection that of the evaluated shape
            if instance.counts is not None and (part == "ground_truth" or kind == "segm"):
                entry["segmentation"] = {"size": list(image.size), "counts": instance.counts}
                entry["area"] = int(mask.area(entry["segmentation"]))
            else:
                entry["area"] = instance.box[2] * instance.box[3]
            annotations.append(entry)
    database = COCO()
    database.dataset = {
        "images": [
            {"id": n, "height": image.size[0], "width": image.size[1]} for n, image in enumerate(images, start=1)
        ],
        "annotations": annotations,
        "categories": [{"id": k, "name": c.name} for k, c in enumerate(things, start=1)],
    }
    database.createIndex()
    return database
