"""Random Cityscapes folders with all corner cases, and results folders for them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from seamseg.maps.formats.cityscapes.labels import EVALUATED
from seamseg.maps.formats.id_png import write_id_png

VOID = (0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18)
STUFF = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23)
THINGS = (24, 25, 26, 27, 28, 31, 32, 33)
IGNORED_THINGS = (29, 30)


class Tree(NamedTuple):
    """Ground truth of a split, and predictions."""

    gt: Path
    results: Path


def make_tree(root: Path, seed: int, frames: int = 4, empty: bool = False) -> Tree:
    """Write frames of random scenes and results for them; `empty` ones predict nothing at all."""
    rng = np.random.default_rng(seed)
    tree = Tree(root / "gtFine" / "val", root / "results")
    annotations = []
    for number in range(frames):
        city = ("aachen", "bad-honnef")[number % 2]
        stem = f"{city}_{seed:06d}_{number:06d}"
        instances = scene(rng, 96, 128)
        labels = labels_of(instances)
        (tree.gt / city).mkdir(parents=True, exist_ok=True)
        save(tree.gt / city / f"{stem}_gtFine_labelIds.png", labels.astype(np.uint8))
        save(tree.gt / city / f"{stem}_gtFine_instanceIds.png", instances.astype(np.uint16))
        guess = np.zeros_like(instances) if empty else disturbed(rng, instances)
        save(tree.results / "pixel" / f"{stem}_pred.png", labels_of(guess).astype(np.uint8))
        write_instances(rng, tree.results / "instance", stem, guess, instances)
        annotations.append(write_panoptic(tree.results / "panoptic", stem, guess))
    content = {"annotations": annotations}
    (tree.results / "panoptic.json").write_text(json.dumps(content))
    return tree


def scene(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A map of `instanceIds`: stuff, void, instances of all sizes, groups, caravans."""
    ids = np.zeros((height, width), np.int64)
    for label in rng.choice(STUFF, 7):
        blob(rng, ids, 40)[:] = label
    for label in rng.choice(VOID, 4):
        blob(rng, ids, 20)[:] = label
    # few classes, to test absent classes, too
    for label in rng.choice(THINGS, 3, replace=False):
        for count in range(int(rng.integers(1, 6))):
            # some are smaller than 100 pixels
            blob(rng, ids, int(rng.choice([6, 12, 30, 40])))[:] = label * 1000 + count
        if rng.random() < 0.6:
            blob(rng, ids, int(rng.choice([7, 30])))[:] = label
    for label in rng.choice(IGNORED_THINGS, 1):
        blob(rng, ids, 25)[:] = label * 1000
        blob(rng, ids, 25)[:] = label
    ids[-6:] = 1
    ids[:8, :8] = 11
    return ids


def blob(rng: np.random.Generator, ids: np.ndarray, size: int) -> np.ndarray:
    """A random rectangle of a map, about `size` long."""
    y, x = (int(rng.integers(0, n)) for n in ids.shape)
    h, w = (int(n) for n in rng.integers(size // 2, size + 1, 2))
    return ids[y : y + h, x : x + w]


def disturbed(rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    out = np.roll(ids, tuple(rng.integers(-2, 3, 2).tolist()), (0, 1))
    for value in np.unique(out):
        draw = rng.random()
        if draw < 0.15:
            out[out == value] = rng.choice(THINGS) * 1000 + 90
        elif draw < 0.25:
            out[out == value] = 0
    for _ in range(4):
        blob(rng, out, 14)[:] = rng.choice([*STUFF, 26001, 24002, 29, 30001])
    return out


def labels_of(ids: np.ndarray) -> np.ndarray:
    return np.where(ids < 1000, ids, ids // 1000)


def write_instances(rng: np.random.Generator, folder: Path, stem: str, guess: np.ndarray, truth: np.ndarray) -> None:
    """The text file of a frame and its masks: overlaps, tied scores, an empty mask, classes that do not count."""
    masks = [(int(v) // 1000, guess == v) for v in np.unique(guess) if v >= 1000]
    # duplicates with errors; objects on groups, on void and on small instances
    masks += [(label, np.roll(mask, 1, 0)) for label, mask in masks if rng.random() < 0.5]
    if masks:
        masks += [(int(v), truth == v) for v in np.unique(truth) if v in THINGS]
        masks += [(int(v) // 1000, truth == v) for v in np.unique(truth) if v >= 1000 and (truth == v).sum() < 100]
        masks += [(26, truth == 1), (24, truth == 3), (33, np.zeros_like(truth, bool)), (7, truth == 7)]
        # one that is certainly false: the official tool stops if every prediction of a class is ignored
        corner = np.zeros_like(truth, bool)
        corner[:8, :8] = True
        masks += [(label, corner) for label in THINGS]
    lines = []
    for number, (label, mask) in enumerate(masks):
        name = f"masks/{stem}_{number}.png"
        pixels = mask if number % 5 == 0 else mask.astype(np.uint8) * int(rng.choice([1, 255]))
        save(folder / name, pixels)
        # few values, for equal scores
        lines.append(f"{name} {label} {rng.integers(1, 10) / 10}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}_instances.txt").write_text("".join(lines))


def write_panoptic(folder: Path, stem: str, guess: np.ndarray) -> dict[str, object]:
    """The id PNG of a frame; its annotation."""
    evaluated = [label.id for label in EVALUATED]
    kept = np.where(np.isin(labels_of(guess), evaluated), guess, 0)
    write_id_png(folder / f"{stem}.png", kept * 77 % (1 << 24))
    segments = [{"id": int(v) * 77, "category_id": int(labels_of(v))} for v in np.unique(kept) if v]
    return {"image_id": stem, "file_name": f"{stem}.png", "segments_info": segments}


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
