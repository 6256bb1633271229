"""Compare conversion of raw frames to a dataset folder with that of the original: mask by mask, as polygons.

    python benchmarks/prepare.py
    python benchmarks/prepare.py cityscapes --rounds 3

The frames are made up: bands of stuff with ellipses of things over them, in the sizes and encodings of Cityscapes
(1024 x 2048, 60 things) and Mapillary Vistas (2448 x 3264, 100 things). The peer does, in one process, what the
original's documentation describes: a binary mask of each instance, its area and box from pycocotools, its outline as
polygons (scikit-image's `find_contours` where that is installed, else edges followed in Python), run lengths for
crowds, then the id map as PNG and a JSON. Ours runs in one process too, but for the case with `workers`. Both read and
write the same files. `difference` compares the annotations of each thing: image, class, crowd flag, area and box.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask
from timing import Case, options, report

from seamseg.formats.cityscapes.labels import EVALUATED, cityscapes_classes
from seamseg.formats.metadata import Metadata
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.convert import ConversionOptions
from seamseg.prepare.vistas import prepare_vistas
from seamseg.utils.parallel import available_cores

FRAMES = 3
VISTAS_STUFF, VISTAS_THINGS = 28, 37

try:
    from skimage.measure import find_contours
except ImportError:
    find_contours = None
PEER = "one by one, " + ("python polygons" if find_contours is None else "skimage polygons")


def scene(height: int, width: int, things: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the band (0..5) and of the thing (0: none) at each pixel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    bands = np.clip((y + 20 * np.sin(x / 70 + seed)) * 6 // height, 0, 5).astype(np.int64)
    owner = np.zeros((height, width), np.int64)
    for k in range(1, things + 1):
        radius = np.exp(rng.normal(3.7, 0.7)) * height / 1024
        a, b, turn = radius, radius * rng.uniform(0.4, 1), rng.uniform(0, np.pi)
        dy, dx = y - rng.uniform(0, height), x - rng.uniform(0, width)
        u, v = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
        owner[(u / a) ** 2 + (v / b) ** 2 + 0.1 * np.sin(9 * np.arctan2(v, u)) < 1] = k
    return bands, owner


def raw_cityscapes(root: Path) -> Path:
    """Write a raw tree of synthetic Cityscapes frames."""
    stuff, things = ([label.id for label in EVALUATED if label.has_instances == kind] for kind in (False, True))
    for k in range(FRAMES):
        bands, owner = scene(1024, 2048, 60, k)
        values = np.array(stuff)[bands]
        label = np.array(things)[owner % len(things)]
        values = np.where(owner > 0, np.where(owner % 10 == 0, label, label * 1000 + owner), values)
        name = f"x_00000{k}_000019"
        _save(values.astype(np.uint16), root / "gtFine" / "train" / "x" / f"{name}_gtFine_instanceIds.png")
        photo = np.zeros((*values.shape, 3), np.uint8)
        _save(photo, root / "leftImg8bit" / "train" / "x" / f"{name}_leftImg8bit.png")
    return root


def raw_vistas(root: Path) -> Path:
    """Write a raw tree of synthetic Vistas frames."""
    names = [(f"stuff-{k}", False) for k in range(VISTAS_STUFF)] + [(f"thing-{k}", True) for k in range(VISTAS_THINGS)]
    labels = [{"name": n, "instances": t, "evaluate": True, "color": [k, k, k]} for k, (n, t) in enumerate(names)]
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps({"labels": labels}))
    for k in range(FRAMES):
        bands, owner = scene(2448, 3264, 100, k)
        label = VISTAS_STUFF + owner % VISTAS_THINGS
        values = np.where(owner > 0, label * 256 + owner, bands * 256)
        _save(values.astype(np.uint16), root / "training" / "instances" / f"{k}.png")
        _save(np.zeros((*values.shape, 3), np.uint8), root / "training" / "images" / f"{k}.jpg")
    return root


def _save(values: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def outlines(mask: np.ndarray) -> list[list[float]]:
    """Return the polygons around a binary mask."""
    padded = np.pad(mask, 1)
    if find_contours is not None:
        return [(np.fliplr(c) - 1).ravel().tolist() for c in find_contours(padded, 0.5)]
    inside = padded.astype(bool)
    steps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    top, bottom = ((-1, 0), (0, 0), (0, 1)), ((1, 0), (1, 1), (1, 0))
    left, right = ((0, -1), (1, 0), (0, 0)), ((0, 1), (0, 1), (1, 1))
    for (dy, dx), start, end in (top, bottom, left, right):  # edges between pixels, the mask on the right hand
        rows, columns = np.nonzero(inside & ~np.roll(inside, (-dy, -dx), (0, 1)))
        for y, x in zip(rows.tolist(), columns.tolist()):
            steps.setdefault((y + start[0], x + start[1]), []).append((y + end[0], x + end[1]))
    found = []
    while steps:
        point = next(iter(steps))
        polygon: list[float] = []
        while point in steps:
            following = steps[point].pop()
            if not steps[point]:
                del steps[point]
            polygon += [point[1] - 1.5, point[0] - 1.5]
            point = following
        found.append(polygon)
    return found


def one_by_one(
    frames: list[tuple[Path, Path]], out: Path, classes: Metadata, describe: Callable[[int], tuple[int, int]]
) -> np.ndarray:
    """Convert as the original does; return the annotations of all things."""
    shutil.rmtree(out, ignore_errors=True)
    for name in ("img", "msk", "coco"):
        (out / name).mkdir(parents=True)
    annotations: list[dict[str, Any]] = []
    for photo, truth in frames:
        shutil.copy(photo, out / "img" / photo.name)
        values = np.array(Image.open(truth)).astype(np.int32)
        ids = np.zeros_like(values)
        for number, value in enumerate(np.unique(values).tolist(), start=1):
            category, crowd = describe(value)
            mask = values == value
            ids[mask] = number
            if not classes.is_thing(category):
                continue
            encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
            if crowd:
                runs = [[bit, len(list(run))] for bit, run in itertools.groupby(mask.ravel(order="F").tolist())]
                counts = [n for _, n in runs]
                segmentation: object = {"counts": [0, *counts] if runs[0][0] else counts, "size": list(mask.shape)}
            else:
                segmentation = outlines(mask)
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": photo.stem,
                    "category_id": category,
                    "iscrowd": crowd,
                    "area": float(coco_mask.area(encoded)),
                    "bbox": coco_mask.toBbox(encoded).tolist(),
                    "segmentation": segmentation,
                }
            )
        Image.fromarray(ids.astype(np.uint16)).save(out / "msk" / f"{photo.stem}.png")
    (out / "coco" / "train.json").write_text(json.dumps(annotations))
    return said_of_things(annotations)


def said_of_things(annotations: list[dict[str, Any]]) -> np.ndarray:
    """Return image, class, crowd flag, area and box of each annotation, sorted."""
    images = {name: k for k, name in enumerate(sorted({a["image_id"] for a in annotations}))}
    rows = [[images[a["image_id"]], a["category_id"], a["iscrowd"], a["area"], *a["bbox"]] for a in annotations]
    return np.array(sorted(rows), dtype=np.int64)


def converted(out: Path, split: str, convert: Callable[[Path], object]) -> np.ndarray:
    """Convert into an empty folder; return the annotations of all things."""
    shutil.rmtree(out, ignore_errors=True)
    convert(out)
    return said_of_things(json.loads((out / "coco" / f"{split}.json").read_bytes())["annotations"])


def cityscapes_case(folder: Path, workers: int) -> Case:
    """Compare the conversion of three synthetic frames of Cityscapes."""
    root = folder / f"city{workers}"
    raw_cityscapes(root)
    classes = cityscapes_classes()
    class_of = {label.id: k for k, label in enumerate(EVALUATED)}

    def describe(value: int) -> tuple[int, int]:
        category = class_of[value // 1000 if value >= 1000 else value]
        return category, int(value < 1000 and classes.is_thing(category))

    truths = sorted((root / "gtFine").rglob("*.png"))
    frames = list(zip(sorted((root / "leftImg8bit").rglob("*.png")), truths))
    ours = partial(prepare_cityscapes, root, splits=["train"], options=ConversionOptions(workers, copy=True))
    return Case(
        f"cityscapes, {FRAMES} frames, {workers} worker{'s' if workers > 1 else ''}",
        PEER,
        lambda: converted(folder / "ours", "train", lambda out: ours(out=out)),
        lambda: one_by_one(frames, folder / "peer", classes, describe),
    )


def vistas_case(folder: Path, workers: int) -> Case:
    """Compare the conversion of three synthetic frames of Vistas."""
    root = folder / f"vistas{workers}"
    raw_vistas(root)
    classes = Metadata(VISTAS_STUFF, VISTAS_THINGS, [""] * 65, [(0, 0, 0)] * 65, [0] * 65)
    frames = [(p, root / "training" / "instances" / f"{p.stem}.png") for p in sorted(root.rglob("*.jpg"))]
    how = ConversionOptions(workers, copy=True)
    return Case(
        f"vistas, {FRAMES} frames, {workers} worker{'s' if workers > 1 else ''}",
        PEER,
        lambda: converted(folder / "ours", "training", lambda out: prepare_vistas(root, out, options=how)),
        lambda: one_by_one(frames, folder / "peer", classes, lambda value: (value // 256, 0)),
    )


def cases(folder: Path) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the cases: both data sets, in one process and in one process per core."""
    for name, make in (("cityscapes", cityscapes_case), ("vistas", vistas_case)):
        for workers in sorted({1, available_cores()}):
            yield name, partial(make, folder, workers)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        report(cases(Path(temporary)), arguments)
