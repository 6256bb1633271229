"""Writes scenes as a raw Cityscapes tree: resumable, in parallel, with atomic writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.maps.toy_city.scene import render_scene
from seamseg.utils.errors import InputError
from seamseg.utils.files import make_folder, replacing, write_atomically
from seamseg.utils.parallel import parallel_map

CITY = "toyville"
VERSION = 1
"""Incremented when the same seed gives different images."""

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
    `(seed, split, its number, size)` alone.

    Parameters
    ----------
    train, val : number of scenes of the splits
    size : `(height, width)` in pixels of landscape images; swapped for the fifth of the images that are portrait
    workers : number of processes; None for one per processor, 1 for this process alone
    progress : called with `(scenes done, total)`

    Returns
    -------
    the ids of all scenes of the city, training first

    Raises
    ------
    InputError
        for a count, size or seed out of range, or a `root` with a toy city of other settings
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
    for path, array in zip(job.paths(), (image, ids, label_ids)):
        save_png(path, array)


def save_png(path: Path, array: np.ndarray) -> None:
    """Write an image atomically."""
    with replacing(path) as temporary:
        Image.fromarray(array).save(temporary, format="PNG", compress_level=1)


def check_settings(folder: Path, settings: dict, name: str = "toy_city.json") -> None:
    """Write the settings to the file `name` of a folder; InputError if it has other ones, to not mix their files."""
    path = folder / name
    if path.is_file():
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path}: not readable ({error}); delete the folder") from None
        if found != settings:
            found = found if isinstance(found, dict) else {}
            changed = [key for key in {**found, **settings} if found.get(key) != settings.get(key)]
            differences = ", ".join(f"{key} {found.get(key)} (now {settings.get(key)})" for key in changed)
            raise InputError(
                f"{folder}: holds files of other settings ({name}: {differences}); choose another folder or delete it"
            )
        return
    make_folder(folder)
    write_atomically(path, json.dumps(settings).encode() + b"\n")
