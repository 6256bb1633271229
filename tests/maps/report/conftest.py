"""Evaluations of toy-city scenes; the predictions are the ground truth with random errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def write_evaluation(
    root: Path, images: int = 4, size: tuple[int, int] = (64, 128), seed: int = 0, names: dict[int, str] | None = None
) -> Path:
    """Images and ground truth in `root`, predictions and evaluation in `root/run{seed}`, which is returned.

    Parameters
    ----------
    root : folder
    images : scenes
    size : `(height, width)`
    seed : of the errors; the scenes are always the same
    names : other names of classes
    """
    run = root / f"run{seed}"
    categories = [
        {"id": c, "name": (names or {}).get(c, NAMES[c]), "isthing": int(c in THINGS), "color": rgb}
        for c, rgb in zip(CLASSES, distinct_colors(len(CLASSES)).tolist())
    ]
    truth: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": categories}
    found: dict[str, list[Any]] = {"annotations": []}
    for k in range(images):
        # rendering is slow: the first eight scenes are repeated
        photo, ids = render_scene(0, "val", k % 8, size)
        name = f"scene {k:03d}"
        (root / "photos").mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo).save(root / "photos" / f"{name}.jpg", quality=90)
        truth["images"].append({"id": name, "file_name": f"{name}.jpg", "height": ids.shape[0], "width": ids.shape[1]})
        truth["annotations"].append(_write(root / "truth", name, *_truth(ids)))
        found["annotations"].append(_write(run / "maps", name, *_prediction(ids, np.random.default_rng([seed, k]))))
    (root / "truth.json").write_text(json.dumps(truth))
    (run / "maps.json").write_text(json.dumps(found))
    evaluate_panoptic_json(
        root / "truth.json", run / "maps.json", out=run / "evaluation", photos=root / "photos", workers=2
    )
    return run


def _truth(ids: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
    out = np.where(np.isin(ids, VOIDS), 0, ids).astype(np.int64)
    segments = []
    for n in np.unique(out[out > 0]).tolist():
        category = n // 1000 if n >= 1000 else n
        area = int((out == n).sum())
        segments.append(
            {"id": n, "category_id": category, "iscrowd": int(category in THINGS and n < 1000), "area": area}
        )
    return out, segments


def _prediction(ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, list[dict[str, Any]]]:
    truth, segments = _truth(ids)
    moved = np.roll(truth, tuple(int(n) for n in rng.integers(-2, 3, 2)), (0, 1))
    out = np.zeros_like(moved)
    classes: dict[int, int] = {}
    for segment in segments:
        if rng.random() < 0.12:
            continue  # missed
        number = 1 + len(classes) * 37
        category = segment["category_id"]
        classes[number] = CONFUSED.get(category, category) if rng.random() < 0.2 else category
        out[moved == segment["id"]] = number
    for _ in range(int(rng.integers(0, 3))):  # false positives
        y, x = (int(rng.integers(0, n - n // 6)) for n in out.shape)
        number = 1 + len(classes) * 37
        classes[number] = int(rng.choice(THINGS))
        out[y : y + out.shape[0] // 6, x : x + out.shape[1] // 8] = number
    listed = []
    for number in np.unique(out[out > 0]).tolist():
        area = int((out == number).sum())
        entry = {"id": number, "category_id": classes[number], "iscrowd": 0, "area": area}
        if classes[number] in THINGS:
            entry["score"] = round(float(rng.uniform(0.5, 1)), 3)
        listed.append(entry)
    return out, listed


def _write(folder: Path, name: str, ids: np.ndarray, segments: list[dict[str, Any]]) -> dict[str, Any]:
    write_id_png(folder / f"{name}.png", ids)
    return {"image_id": name, "file_name": f"{name}.png", "segments_info": segments}


NASTY = {
    26: '</script><script>document.title="taken"</script>',
    24: 'a "person" & <b>män</b> \u2028 \U0001f697 {{data}}',
}
"""Names of classes that must stay text."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs on the same ten scenes, with awkward class names."""
    root = tmp_path_factory.mktemp("report")
    first, second = (write_evaluation(root, 10, (96, 192), seed, NASTY) for seed in (0, 1))
    return first, second
