"""Average precision of boxes and masks: equal to pycocotools and hotcoco, known values and odd images."""

import contextlib
import io
import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import hotcoco
import numpy as np
import pytest
import torch
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from seamseg.maps.evaluation import ClassInfo, average_precision, image_instances
from seamseg.maps.evaluation.scores import AP_NUMBERS
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import Prediction

# no image has a bus
CLASSES = [ClassInfo(n, i, n != "road") for n, i in (("road", 7), ("car", 26), ("person", 24), ("bus", 28))]
SIZE = (180, 220)

pycocotools = SimpleNamespace(COCO=COCO, COCOeval=COCOeval)
ONE = pytest.approx(1.0, abs=1e-14)
"""pycocotools divides by a number that is larger than it should be by an epsilon."""


def prediction(boxes, classes, scores, size=SIZE):
    """Detections whose masks fill their boxes."""
    n = len(boxes)
    logits = torch.full((n, 28, 28), 20.0)
    box = torch.tensor(boxes, dtype=torch.float32).reshape(n, 4)
    return Prediction(box, torch.tensor(classes, dtype=torch.long), torch.tensor(scores), logits, None, size)


def id_map(*boxes, size=SIZE):
    """A map of one layer with the rectangles as ids 1, 2, ..."""
    ids = np.zeros((1, *size), np.int32)
    for i, (y0, x0, y1, x1) in enumerate(boxes, start=1):
        ids[0, y0:y1, x0:x1] = i
    return torch.from_numpy(ids)


def random_images(seed, repeats=(60, 2, 0, 1, 2, 2)):
    """Ground truth of cars, persons, crowds, void and stuff, and detections near it, some of the wrong class.

    The first image has more than a hundred detections of a class, another none.
    """
    draw = random.Random(seed)
    for number, repeat in enumerate(repeats):
        boxes = []
        for _ in range(6 if repeat > 2 else draw.randint(0, 6)):
            y, x = draw.randint(0, 70), draw.randint(0, 100)
            boxes.append((y, x, y + draw.randint(20, 109), x + draw.randint(20, 119)))
        cat = [VOID, *(draw.choice([0, 1, 2, 2, VOID]) for _ in boxes)]
        crowd = [0, *(int(draw.random() < 0.2) for _ in boxes)]
        found = [[side + draw.uniform(-6, 6) for side in box] for box in boxes * repeat]
        guess = prediction(found, [draw.randint(0, 1) for _ in found], [draw.random() for _ in found])
        yield (id_map(*boxes), cat, crowd, guess), str(number)


def evaluated(images):
    return average_precision(CLASSES, [image_instances(CLASSES, *image, name) for image, name in images])


def whole_mask(box):
    """The pixels whose centre is where the bilinear sample of a mask of ones in the box is above one half, if any."""
    shares = []
    for low, high, side in zip(box[:2], box[2:], SIZE):
        at = np.arange(side) + 0.5
        shares.append(np.clip(np.minimum(at - low, high - at) * 28 / (high - low) + 0.5, 0, high > low))
    return shares[0][:, None] * shares[1] > 0.5


def rle_of(mask):
    rle = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return rle, {"size": list(SIZE), "counts": rle["counts"].decode()}


def as_files(images, folder, kind):
    truth, results = [], []
    for number, ((ids, cat, crowd, guess), _) in enumerate(images):
        for i in np.unique(ids).tolist():
            if cat[i] in (1, 2):
                rle, text = rle_of(ids[0].numpy() == i)
                entry = {"id": len(truth) + 1, "image_id": number, "category_id": cat[i], "iscrowd": crowd[i]}
                box = masks.toBbox(rle).tolist()
                truth.append({**entry, "area": float(masks.area(rle)), "bbox": box, "segmentation": text})
        for (y0, x0, y1, x1), c, score in zip(guess.boxes.tolist(), guess.classes.tolist(), guess.scores.tolist()):
            box, mask = [x0, y0, x1 - x0, y1 - y0], rle_of(whole_mask((y0, x0, y1, x1)))[1]
            shape = {"bbox": box} if kind == "bbox" else {"segmentation": mask}
            results.append({"image_id": number, "category_id": c + 1, "score": score, **shape})
    content = {
        "images": [{"id": n, "height": SIZE[0], "width": SIZE[1]} for n in range(len(images))],
        "annotations": truth,
        "categories": [{"id": k, "name": CLASSES[k].name} for k in (1, 2, 3)],
    }
    paths = folder / f"{kind}_gt.json", folder / f"{kind}_results.json"
    for path, part in zip(paths, (content, results)):
        path.write_text(json.dumps(part))
    return map(str, paths)


def six_numbers(module, paths, kind, categories=(1, 2, 3)):
    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = paths
        truth = module.COCO(truth)
        load = truth.loadRes if module is pycocotools else truth.load_res
        evaluation = module.COCOeval(truth, load(found), kind)
        evaluation.params.catIds = list(categories)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return list(evaluation.stats)[:6]


@pytest.mark.parametrize("seed", range(6))
def test_equals_pycocotools_and_hotcoco(seed, tmp_path):
    """On their own, from JSON files that are made without the package."""
    images = list(random_images(seed))
    scores = evaluated(images)
    for kind, ap in (("bbox", scores.box), ("segm", scores.mask)):
        paths = list(as_files(images, tmp_path, kind))
        theirs = six_numbers(pycocotools, paths, kind)
        # -1 for what is not there
        ours = [-1.0 if math.isnan(v) else v for v in (getattr(ap, key) for key in AP_NUMBERS)]
        assert ours == pytest.approx(theirs, abs=1e-12)
        assert ours == pytest.approx(six_numbers(hotcoco, paths, kind), abs=1e-12)
        assert 0 < theirs[0] < 1
        for category, one in enumerate(ap.per_class, start=1):
            wanted = six_numbers(pycocotools, paths, kind, [category])[0]
            assert (-1.0 if math.isnan(one.AP) else one.AP) == pytest.approx(wanted, abs=1e-12)


def test_known_values(capsys):
    """One car of two found; the better detection is wrong: precision 1/2 up to recall 1/2, by 101 steps of recall."""
    boxes = [(0, 0, 40, 40), (60, 60, 100, 100)]
    guess = prediction([(0, 100, 40, 140), (0, 0, 40, 40)], [0, 0], [0.9, 0.8])
    scores = evaluated([((id_map(*boxes), [VOID, 1, 1], [0] * 3, guess), "a")])
    assert pytest.approx(0.5 * 51 / 101) == scores.box.AP
    assert math.isnan(scores.box.per_class[1].AP), "there is no person"
    assert math.isnan(scores.box.AP_large)
    assert list(scores.kinds) == ["box", "mask"]
    bare = evaluated([((id_map(*boxes), [VOID, 1, 1], [0] * 3, replace(guess, mask_logits=None)), "a")])
    assert (bare.box.AP, bare.mask, list(bare.kinds)) == (scores.box.AP, None, ["box"])
    assert capsys.readouterr().out == "", "pycocotools prints"


def test_layers_overlap():
    """An instance that lies under another is whole in its layer."""
    ids = torch.cat([id_map((0, 0, 60, 60)), torch.where(id_map((20, 20, 40, 40)) > 0, 2, 0).int()])
    guess = prediction([(0, 0, 60, 60), (20, 20, 40, 40)], [0, 1], [0.9, 0.9])
    assert evaluated([((ids, [VOID, 1, 2], [0, 0, 0], guess), "a")]).box.AP == ONE
    found = image_instances(CLASSES, ids, [VOID, len(CLASSES), 2], [0, 0, 0], guess, "a").ground_truth
    assert [instance.category for instance in found] == [1], "of known classes"


def test_detections_are_resized_to_the_image():
    half = prediction([(5, 5, 25, 30)], [0], [0.9], size=(90, 110))
    image = image_instances(CLASSES, id_map((10, 10, 50, 60)), [VOID, 1], [0, 0], half, "a")
    assert image.detections[0].box == (10.0, 10.0, 50.0, 40.0)
    scores = average_precision(CLASSES, [image])
    assert scores.box.AP == ONE
    assert scores.mask.AP50 == ONE
