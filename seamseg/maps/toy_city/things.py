"""Images of the things of the toy city, in a folder for each class: a stand-in for ImageNet."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from seamseg.maps.toy_city import labels
from seamseg.maps.toy_city.scene import render_scene
from seamseg.maps.toy_city.writer import check_scenes, check_settings, save_png
from seamseg.utils.parallel import parallel_map

SCENE_SIZE = (128, 256)
VERSION = 1
"""Incremented when the same seed gives different images."""

_MIN_SIDE = 20
_MIN_FILL = 0.3
"""Smallest fraction of its box that a visible thing covers; others are mostly hidden by something else."""
_MARGIN = 1.1
"""Side of the cut-out square as a multiple of the longer side of the box."""


def generate_toy_things(
    root: str | os.PathLike,
    train: int = 600,
    val: int = 100,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, int]]:
    """Write `root/train/<class>/*.png` and `root/val/<class>/*.png`, the things of the toy city.

    The images are squares of 22 pixels and more around the things that are wholly inside their scene and mostly
    visible. They depend on the arguments alone; existing files are overwritten.

    Parameters
    ----------
    train, val : number of scenes of the splits, each with about three things
    seed : seed of the scenes
    workers : number of processes; None for one per processor, 1 for this process alone
    progress : called with `(scenes done, total)`

    Returns
    -------
    number of images by split and class

    Raises
    ------
    InputError
        if the number of scenes of a split or the seed is out of range, or `root` has things of other settings
    """
    check_scenes("toy things", train, val, seed, least=1)
    folder = Path(root)
    settings = {"version": VERSION, "seed": int(seed), "train": int(train), "val": int(val)}
    check_settings(folder, settings, "toy_things.json")
    scenes = [(split, index) for split, count in (("train", train), ("val", val)) for index in range(count)]
    counts = {"train": Counter[str](), "val": Counter[str]()}
    written = parallel_map(partial(_write_things, folder, int(seed)), scenes, workers)
    for done, ((split, _), names) in enumerate(zip(scenes, written), start=1):
        counts[split].update(names)
        if progress is not None:
            progress(done, len(scenes))
    return {split: dict(sorted(counted.items())) for split, counted in counts.items()}


def _write_things(folder: Path, seed: int, scene: tuple[str, int]) -> list[str]:
    """Write the things of a scene; return the class of each."""
    split, index = scene
    image, ids = render_scene(seed, split, index, SCENE_SIZE)
    names = []
    for value in np.unique(ids[ids >= 1000]).tolist():
        found = cut_out(image, ids == value)
        if found is not None:
            name = labels.NAMES[value // 1000]
            save_png(folder / split / name / f"{index:05d}_{value}.png", found)
            names.append(name)
    return names


def cut_out(image: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """Cut out the square around a thing with the visible pixels `mask`, as far as it is inside the image.

    None if the thing touches the border of the image, is small or mostly hidden.
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return None
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    height, width = mask.shape
    longest = max(bottom - top, right - left)
    inside = top > 0 and left > 0 and bottom < height and right < width
    if not inside or longest < _MIN_SIDE or mask.sum() < _MIN_FILL * (bottom - top) * (right - left):
        return None
    side = round(_MARGIN * longest)
    y = max(0, min((top + bottom - side) // 2, height - side))
    x = max(0, min((left + right - side) // 2, width - side))
    return np.ascontiguousarray(image[y : y + side, x : x + side])
