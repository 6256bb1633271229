"""Evaluations of toy-city scenes; the predictions are the ground truth with random errors."""

import json

import numpy as np
import pytest
from PIL import Image

from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.formats.id_png import write_id_png
from seamseg.maps.toy_city import render_scene
from seamseg.maps.toy_city.labels import NAMES, STUFF, THINGS, VOIDS
from seamseg.maps.visualize import distinct_colors

CLASSES = [*STUFF, *THINGS]
CONFUSED = {26: 27, 24: 25, 8: 7}
"""Class with which a class is sometimes confused."""


def write_evaluation(root, seed):
    """Images and ground truth of ten scenes in `root`, predictions and evaluation in `root/run{seed}`, of errors."""
    run = root / f"run{seed}"
    categories = [
        {"id": c, "name": NASTY.get(c, NAMES[c]), "isthing": int(c in THINGS), "color": rgb}
        for c, rgb in zip(CLASSES, distinct_colors(len(CLASSES)).tolist())
    ]
    truth = {"images": [], "annotations": [], "categories": categories}
    found = {"annotations": []}
    (root / "photos").mkdir(exist_ok=True)
    for k in range(10):
        # rendering is slow: the first eight scenes are repeated
        photo, ids = render_scene(0, "val", k % 8, (96, 192))
        name, rng = f"scene {k:03d}", np.random.default_rng([seed, k])
        Image.fromarray(photo).save(root / "photos" / f"{name}.jpg", quality=90)
        truth["images"].append({"id": name, "file_name": f"{name}.jpg", "height": ids.shape[0], "width": ids.shape[1]})
        truth["annotations"].append(_write(root / "truth", name, ids))
        found["annotations"].append(_write(run / "maps", name, _disturbed(ids, rng), rng))
    (root / "truth.json").write_text(json.dumps(truth))
    (run / "maps.json").write_text(json.dumps(found))
    evaluate_panoptic_json(
        root / "truth.json", run / "maps.json", out=run / "evaluation", photos=root / "photos", workers=2
    )
    return run


def _disturbed(ids, rng):
    out = np.roll(ids, tuple(rng.integers(-2, 3, 2).tolist()), (0, 1))
    for value in np.unique(out).tolist():
        draw, category = rng.random(), value // 1000 or value
        if draw < 0.12:
            out[out == value] = 0  # missed
        elif draw < 0.3 and category in CONFUSED:
            out[out == value] = CONFUSED[category] * (1000 if value >= 1000 else 1)
    for n in range(int(rng.integers(0, 3))):  # false positives
        y, x = (int(rng.integers(0, n - n // 6)) for n in out.shape)
        out[y : y + out.shape[0] // 6, x : x + out.shape[1] // 8] = int(rng.choice(THINGS)) * 1000 + 90 + n
    return out


def _write(folder, name, ids, rng=None):
    out, segments = np.where(np.isin(ids, VOIDS), 0, ids).astype(np.int64), []
    for value in np.unique(out[out > 0]).tolist():
        category, area = value // 1000 or value, int((out == value).sum())
        entry = {
            "id": value,
            "category_id": category,
            "iscrowd": int(category in THINGS and value < 1000),
            "area": area,
        }
        scored = rng is not None and category in THINGS
        segments.append({**entry, "score": round(float(rng.uniform(0.5, 1)), 3)} if scored else entry)
    write_id_png(folder / f"{name}.png", out)
    return {"image_id": name, "file_name": f"{name}.png", "segments_info": segments}


NASTY = {
    26: '</script><script>document.title="taken"</script>',
    24: 'a "person" & <b>män</b> \u2028 \U0001f697 {{data}}',
}
"""Names of classes that must stay text."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    return write_evaluation(root, 0), write_evaluation(root, 1)
