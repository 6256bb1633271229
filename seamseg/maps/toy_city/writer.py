"""Writes scenes as a raw Cityscapes tree, and their things as class folders, a stand-in for ImageNet; atomically."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.maps.toy_city import labels
from seamseg.maps.toy_city.scene import render_scene
from seamseg.utils.errors import InputError
from seamseg.utils.files import make_folder, replacing, write_atomically
from seamseg.utils.parallel import parallel_map

CITY = "toyville"
VERSION = 1
"""Of scenes and things; incremented when the same seed gives different images."""

MAX_SIDE = 8192
"""Maximum height and width of a scene in pixels."""

MAX_SCENES = 500_000
"""Maximum number of scenes of a split."""

_FIRST = {"train": 0, "val": MAX_SCENES}
"""Number of the first scene of a split: file names differ between splits, as in Cityscapes."""


@dataclass(frozen=True)
class _Job:
    root: Path
    seed: int
    split: str
    index: int
    size: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{CITY}_{_FIRST[self.split] + self.index:06d}_000019"

    def paths(self) -> tuple[Path, Path, Path]:
        """Return the paths of image, instance ids and label ids."""
        truth = self.root / "gtFine" / self.split / CITY / f"{self.name}_gtFine"
        image = self.root / "leftImg8bit" / self.split / CITY / f"{self.name}_leftImg8bit.png"
        return image, Path(f"{truth}_instanceIds.png"), Path(f"{truth}_labelIds.png")


def generate_toy_city(
    root: str | os.PathLike,
    train: int = 400,
    val: int = 40,
    seed: int = 0,
    size: tuple[int, int] = (256, 512),
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Write a toy city under `root` as `leftImg8bit/` and `gtFine/`, as Cityscapes is distributed.

    Existing scenes are kept, so repeat an interrupted call to finish it. Every scene depends on
    `(seed, split, its number, size)` alone; `size`, `(height, width)` in pixels, is swapped for the fifth of the images
    that are portrait. Without `workers` there is a process per processor, 1 is this process alone; `progress` is called
    with `(scenes done, total)`. Returns the ids of all scenes, training first.

    InputError for a count, size or seed out of range, or a `root` with a toy city of other settings.
    """
    check_scenes("toy city", train, val, seed, least=0)
    if min(size) < 64 or max(size) > MAX_SIDE:
        raise InputError(f"toy city: size must be from 64 to {MAX_SIDE} pixels a side, got {size[0]}x{size[1]}")
    folder = Path(root)
    check_settings(folder, {"version": VERSION, "seed": int(seed), "size": [int(s) for s in size]})
    counts = {"train": train, "val": val}
    jobs = [_Job(folder, int(seed), split, i, (size[0], size[1])) for split, n in counts.items() for i in range(n)]
    for split in (s for s, n in counts.items() if n):
        for top in ("leftImg8bit", "gtFine"):
            make_folder(folder / top / split / CITY)
    todo = [job for job in jobs if not all(path.is_file() for path in job.paths())]
    done = len(jobs) - len(todo)
    for _ in parallel_map(_write_scene, todo, workers):
        done += 1
        if progress is not None:
            progress(done, len(jobs))
    return [job.name for job in jobs]


def check_scenes(what: str, train: int, val: int, seed: int, least: int) -> None:
    """Raise InputError, which begins with `what`, if a number of scenes or the seed is out of range."""
    for name, count in (("train", train), ("val", val)):
        if not least <= count <= MAX_SCENES:
            raise InputError(f"{what}: `{name}={count}`: must be from {least} to {MAX_SCENES}")
    if seed < 0:
        raise InputError(f"{what}: `seed={seed}`: must not be negative")


def _write_scene(job: _Job) -> None:
    image, ids = render_scene(job.seed, job.split, job.index, job.size)
    label_ids = np.where(ids >= 1000, ids // 1000, ids).astype(np.uint8)
    # the noise of an image hardly compresses, and each epoch would inflate it again
    for path, array, level in zip(job.paths(), (image, ids, label_ids), (0, 1, 1)):
        save_png(path, array, level)


def save_png(path: Path, array: np.ndarray, level: int = 1) -> None:
    """Write an image atomically; `level` is that of the compression."""
    with replacing(path) as temporary:
        Image.fromarray(array).save(temporary, format="PNG", compress_level=level)


def check_settings(folder: Path, settings: dict, name: str = "toy_city.json") -> None:
    """Write the settings to the file `name` of a folder; InputError if it has other ones, to not mix their files."""
    path = folder / name
    if path.is_file():
        if (found := json.loads(path.read_text())) != settings:
            changed = [
                f"{key} {found.get(key)} (now {value})" for key, value in settings.items() if found.get(key) != value
            ]
            raise InputError(
                f"{folder}: holds files of other settings ({name}: {', '.join(changed)}); choose another folder or "
                "delete it"
            )
        return
    make_folder(folder)
    write_atomically(path, json.dumps(settings).encode() + b"\n")


THING_SCENES = (128, 256)
"""Size of the scenes that the things are cut out of."""
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
    """Write `root/train/<class>/*.png` and `root/val/<class>/*.png`, the things of the toy city; return their numbers.

    The images are squares of 22 pixels and more around the things that are wholly inside their scene and mostly
    visible, about three in each of the `train` and `val` scenes. They depend on the arguments alone; existing files are
    overwritten. `workers` and errors as of :func:`generate_toy_city`.
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
    split, index = scene
    image, ids = render_scene(seed, split, index, THING_SCENES)
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
