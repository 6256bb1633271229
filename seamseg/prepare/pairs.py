"""Matches images and annotations by name, in folders with or without sub-folders, and numbers segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from seamseg.data.folder import IMAGE_EXTENSIONS
from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import VOID
from seamseg.prepare.archives import File, SourceTree
from seamseg.utils.errors import InputError
from seamseg.utils.files import nearest_path

_LABEL_SHIFT = 32

PHOTO_EXTENSIONS = (*IMAGE_EXTENSIONS, ".bmp", ".tif", ".tiff", ".webp")
"""Accepted image formats; those that a dataset folder does not support are converted to PNG."""


def is_photo(name: str) -> bool:
    """Return whether a file name has the extension of an image, in any case."""
    return name.lower().endswith(PHOTO_EXTENSIONS)


def tree_files(folder: str | Path, what: str) -> dict[str, File]:
    """Return all files of a folder (with sub-folders and archives) or of an archive, by relative path.

    Raises
    ------
    InputError
        if there is neither folder nor archive, named `what`
    """
    path = Path(folder)
    if not path.exists():
        raise InputError(f"{path}: no such folder or archive ({what}){nearest_path(path)}")
    tree = SourceTree(path)
    found: dict[str, File] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        prefix = f"{below}/" if below else ""
        found.update((prefix + name, file) for name, file in tree.files(below).items())
        waiting += [prefix + name for name in tree.folders(below) if not name.startswith((".", "__MACOSX"))]
    return {name: found[name] for name in sorted(found)}


def by_stem(files: Mapping[str, File], keep: Callable[[str], Any]) -> dict[str, File]:
    """Return files by path without extension, filtered by `keep`; InputError if two differ in their extension only."""
    found: dict[str, File] = {}
    for name, file in files.items():
        if not keep(name):
            continue
        stem = str(PurePosixPath(name).with_suffix(""))
        if stem in found:
            raise InputError(f"{file}: {found[stem]} has the same name; keep one of them")
        found[stem] = file
    return found


def without_suffix(files: Mapping[str, File], suffix: str) -> dict[str, File]:
    """Return files by stem without `suffix`; those that do not have it are omitted."""
    return {stem.removesuffix(suffix): file for stem, file in files.items() if stem.endswith(suffix)}


class FilesByName:
    """Finds files by path, or by name alone if the folders differ.

    Parameters
    ----------
    files : files by path, with or without extensions
    """

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files
        self._by_last_part: dict[str, File | None] = {}
        for path, file in files.items():
            last = PurePosixPath(path).name
            self._by_last_part[last] = None if last in self._by_last_part else file

    def __len__(self) -> int:
        return len(self._files)

    def find(self, path: str) -> File | None:
        """Return the file with a path, else the only one with the same file name; None if there is none."""
        return self._files.get(path) or self._by_last_part.get(PurePosixPath(path).name)


def number_segments(
    values: np.ndarray, describe: Callable[[int], tuple[int, int]], classes: Metadata
) -> tuple[np.ndarray, list[int], list[int]]:
    """Assign ids from 1 to the segments of a map, by increasing value.

    Values of one stuff class become one segment; each thing is a separate segment.

    Parameters
    ----------
    values : `H x W` or `L x H x W` integers
    describe : returns `(class, crowd flag)` of a value; class 255 for void
    classes : defines which classes are things

    Returns
    -------
    ids : ids in the shape of `values`, uint8 or uint16, 0 void
    cat, iscrowd : class and crowd flag by id; entry 0 is void
    """
    flat = values.ravel()
    # one value per run of equal ones: sorting all pixels would take most of the time
    start = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    present, run_value = np.unique(flat[start], return_inverse=True)
    cat, iscrowd = [VOID], [0]
    new_id = np.zeros(len(present), dtype=np.int64)
    stuff: dict[int, int] = {}
    for k, value in enumerate(present.tolist()):
        category, crowd = describe(value)
        if category == VOID:
            continue
        if not classes.is_thing(category) and category in stuff:
            new_id[k] = stuff[category]
            continue
        new_id[k] = stuff[category] = len(cat)
        cat.append(category)
        iscrowd.append(int(crowd) if classes.is_thing(category) else 0)
    dtype = np.uint8 if len(cat) <= 256 else np.uint16
    ids = np.repeat(new_id[run_value.ravel()].astype(dtype), np.diff(start, append=flat.size))
    return ids.reshape(values.shape), cat, iscrowd


def number_objects(
    labels: np.ndarray, numbers: np.ndarray, class_of: Callable[[int], int], classes: Metadata
) -> tuple[np.ndarray, list[int], list[int]]:
    """Assign ids to the segments of a map of labels, see :func:`number_segments`.

    Parameters
    ----------
    labels, numbers : `H x W` int64: labels, and numbers of the objects of a label below 2^32, 0 for a crowd
    class_of : returns the class of a label; 255 for void
    classes : defines which classes are things
    """

    def describe(value: int) -> tuple[int, int]:
        return class_of(value >> _LABEL_SHIFT), int(value & (1 << _LABEL_SHIFT) - 1 == 0)

    return number_segments(labels << _LABEL_SHIFT | numbers, describe, classes)
