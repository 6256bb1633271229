"""AP equal to pycocotools and hotcoco on their own, from JSON files that are made without the package."""

from __future__ import annotations

import contextlib
import io
import json
import math

import hotcoco
import numpy as np
import pytest
import torch
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from seamseg.evaluation import ClassInfo, average_precision
from seamseg.evaluation.coco_ap import ImageInstances, Instance, encode_crop, instances_of_map
from seamseg.evaluation.scores import AP_NUMBERS
from seamseg.panoptic_map import VOID

# no image has a bus
CLASSES = [ClassInfo(n, i, i > 0) for i, n in enumerate(("road", "car", "person", "bus"))]
THINGS = [c for c in CLASSES if c.isthing]
SIZE = (180, 220)


def ellipse(rng, centre, radii):
    """A mask, `H x W` bool."""
    y, x = np.ogrid[: SIZE[0], : SIZE[1]]
    return ((y - centre[0]) / radii[0]) ** 2 + ((x - centre[1]) / radii[1]) ** 2 <= 1


def random_image(rng, most):
    """`(ids, cat, iscrowd, detections)`; a detection is (thing, mask, box as x, y, width, height, score)."""
    ids, cat, crowd = np.zeros(SIZE, np.int32), [VOID], [0]
    shapes = []
    for i in range(1, 1 + int(rng.integers(0, 9))):
        centre, radii = rng.uniform(0, SIZE), rng.choice([6, 25, 70]) * rng.uniform(0.5, 1.5, 2)
        ids[ellipse(rng, centre, radii)] = i
        cat.append(int(rng.choice([0, 1, 1, 2, VOID])))
        crowd.append(int(rng.random() < 0.25))
        shapes.append((centre, radii, cat[-1]))
    found = []
    for _ in range(int(rng.integers(0, most + 1))):
        centre, radii, category = rng.uniform(0, SIZE), rng.uniform(2, 60, 2), int(rng.integers(1, 3))
        if shapes and rng.random() < 0.8:
            centre, radii, category = shapes[rng.integers(len(shapes))]
            centre, radii = centre + rng.normal(0, 2, 2), radii * rng.uniform(0.8, 1.2, 2)
        if category not in (1, 2) or rng.random() < 0.1:
            category = int(rng.integers(1, 3))
        mask = ellipse(rng, centre, radii)
        if mask.any():
            box = [centre[1] - radii[1], centre[0] - radii[0], 2 * radii[1], 2 * radii[0]]
            found.append((category - 1, mask, [float(v) for v in box], float(rng.random())))
    return ids, cat, crowd, found


def images_of(seed):
    """Some images have far more than a hundred detections of a class, some none."""
    rng = np.random.default_rng(seed)
    return [random_image(rng, most) for most in (400, 12, 0, 5, 12, 30)]


def ours(images):
    collected = []
    for number, (ids, cat, crowd, found) in enumerate(images):
        truth = instances_of_map(torch.from_numpy(ids), cat, crowd, 1, len(CLASSES))
        guesses = [Instance(c, tuple(box), encode_crop(mask, (0, 0), SIZE), score) for c, mask, box, score in found]
        collected.append(ImageInstances(f"{number:03d}", SIZE, truth, guesses))
    return average_precision(CLASSES, collected)


def rle_of(mask):
    rle = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return rle, {"size": list(SIZE), "counts": rle["counts"].decode()}


def as_files(images, folder, kind):
    """Paths of the ground truth and of the results."""
    truth, results = [], []
    for number, (ids, cat, crowd, found) in enumerate(images, start=1):
        for i in np.unique(ids[ids > 0]).tolist():
            if cat[i] in (1, 2):
                rle, text = rle_of(ids == i)
                entry = {"id": len(truth) + 1, "image_id": number, "category_id": cat[i], "iscrowd": crowd[i]}
                box = masks.toBbox(rle).tolist()
                truth.append({**entry, "area": float(masks.area(rle)), "bbox": box, "segmentation": text})
        for category, mask, box, score in found:
            shape = {"bbox": box} if kind == "bbox" else {"segmentation": rle_of(mask)[1]}
            results.append({"image_id": number, "category_id": category + 1, "score": score, **shape})
    content = {
        "images": [{"id": n, "height": SIZE[0], "width": SIZE[1]} for n in range(1, len(images) + 1)],
        "annotations": truth,
        "categories": [{"id": k, "name": c.name} for k, c in enumerate(THINGS, start=1)],
    }
    paths = folder / f"{kind}_gt.json", folder / f"{kind}_results.json"
    for path, part in zip(paths, (content, results)):
        path.write_text(json.dumps(part))
    return paths


def six_numbers(truth, evaluate, found, kind, category=None):
    """By the classes of a tool, of one class if `category` is given."""
    evaluation = evaluate(truth, found, kind)
    if category is not None:
        evaluation.params.catIds = [category]
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return list(evaluation.stats)[:6]


def by_pycocotools(paths, kind, category=None):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(paths[0]))
        return six_numbers(truth, COCOeval, truth.loadRes(str(paths[1])), kind, category)


def by_hotcoco(paths, kind):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = hotcoco.COCO(str(paths[0]))
        return six_numbers(truth, hotcoco.COCOeval, truth.load_res(str(paths[1])), kind)


def numbers(scores):
    """With -1 for what is not there, as pycocotools has it."""
    return [-1.0 if math.isnan(v) else v for v in (getattr(scores, key) for key in AP_NUMBERS)]


@pytest.mark.parametrize("seed", range(6))
def test_equals_pycocotools_and_hotcoco(seed, tmp_path):
    images = images_of(seed)
    scores = ours(images)
    for kind, ap in (("bbox", scores.box), ("segm", scores.mask)):
        paths = as_files(images, tmp_path, kind)
        theirs = by_pycocotools(paths, kind)
        assert numbers(ap) == pytest.approx(theirs, abs=1e-12)
        assert numbers(ap) == pytest.approx(by_hotcoco(paths, kind), abs=1e-12)
        assert 0 < theirs[0] < 1
        for category, one in enumerate(ap.per_class, start=1):
            wanted = by_pycocotools(paths, kind, category)[0]
            assert (-1.0 if math.isnan(one.AP) else one.AP) == pytest.approx(wanted, abs=1e-12)
