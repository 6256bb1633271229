"""Matches images and annotations by name, in folders with or without sub-folders, and numbers segments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import numpy as np

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.images import PHOTO_ENDINGS
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.archives import ArchiveMember, File, SourceTree
from seamseg.utils.errors import InputError
from seamseg.utils.files import nearest_path

_LABEL_SHIFT = 32
_PART = 1 << 20
_FEW = 8
"""Files of one name that are compared one by one."""

LABEL_ENDINGS = (".png", ".tif", ".tiff", ".bmp")
"""Lossless formats of label images and masks."""
COCO_JSON = "; one JSON file of all images, as of COCO, is for `seamseg prepare instances` or `panoptic`"
"""Hint for a JSON file in the place of labels."""
_UPLOADED = re.compile(r"(?<![^/])upload/\d+/")
"""Folders of Label Studio, which images have nowhere else."""


def is_image(name: str) -> bool:
    """Return whether a file name has the extension of an image, in any case."""
    return name.lower().endswith(PHOTO_ENDINGS)


def is_label(name: str) -> bool:
    """Return whether a file name has the extension of a label image, in any case."""
    return name.lower().endswith(LABEL_ENDINGS)


def tree_files(folder: str | Path, what: str) -> dict[str, File]:
    """Return all files of a folder, with sub-folders and zip files, or of a zip file: :meth:`SourceTree.all_files`.

    InputError names the source `what`.
    """
    path = Path(folder)
    if not path.exists():
        raise InputError(f"{path}: no such folder or archive ({what}){nearest_path(path)}")
    tree = SourceTree(path)
    found = tree.all_files()
    if not found and path.is_file():
        hint = COCO_JSON if path.suffix.lower() == ".json" else tree.hint
        raise InputError(f"{path}: neither a folder nor a zip file with files ({what}){hint}")
    return found


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
    """Finds files by path; by their name alone if no folder contradicts.

    A file is found under one name only. The folders of name and file may differ if one has all folders of the other:
    `train/a` is `a` of a folder that is `train` itself, but `cam1/a` is never `cam0/a`.

    A file whose path is one of the `wanted` names is not found under another name. With `same_tree` the names are paths
    of such a folder, too: a top folder of an archive that they lack is then no contradiction.
    """

    def __init__(self, files: Mapping[str, File], wanted: Iterable[str] = (), same_tree: bool = False) -> None:
        self._files = files
        self._wanted = frozenset(wanted)
        # the folder that holds all files of an archive, where no name has this folder
        self._tops: dict[Path | None, str] = {}
        if same_tree:
            tops: dict[Path, set[str]] = {}
            for path, file in files.items():
                if isinstance(file, ArchiveMember):
                    tops.setdefault(file.archive, set()).add(path.partition("/")[0])
            known = {folder for name in self._wanted for folder in PurePosixPath(name).parts[:-1]}
            single = {archive: top for archive, top in tops.items() if len(top) == 1}
            self._tops = {archive: top.pop() for archive, top in single.items() if not top & known}
        self._paths: dict[str, list[str]] = {}
        self._by_folder: dict[str, tuple[defaultdict[str, list[str]], ...]] = {}
        self._used: dict[str, str] = {}
        for path in files:
            if path not in self._wanted:
                self._paths.setdefault(PurePosixPath(path).name, []).append(path)

    def __len__(self) -> int:
        return len(self._files)

    def path_of(self, name: str) -> str | None:
        """Return the path of the file with a name; None if there is none, or several."""
        found = self._paths_of(name)
        return found[0] if len(found) == 1 else None

    def get(self, name: str, source: object, folder: str) -> File:
        """Return the file with a name that `source` lists; InputError if there is none in the folder, or several."""
        found = self._paths_of(name)
        if len(found) != 1:
            why = f"both {found[0]!r} and {found[1]!r} may be it" if found else f"it is not among the {len(self)} files"
            raise InputError(f"{source}: lists {name!r}, but {why} in {folder}")
        return self.use(found[0], name)

    def _paths_of(self, name: str) -> list[str]:
        found: list[str] = []
        for spelling in [name] if name in self._files else spellings(name):
            if spelling in self._files:
                return [spelling]
            *folders, own = PurePosixPath(spelling).parts or ("",)
            fitting = (path for path in self._candidates(folders, own) if self._fits(folders, path))
            found = list(islice(fitting, 2))
            if len(found) == 1:
                break
        return found

    def find(self, name: str) -> File | None:
        """Return the file with a name, None if there is none or several; InputError if another name has it."""
        path = self.path_of(name)
        return None if path is None else self.use(path, name)

    def use(self, path: str, name: str) -> File:
        """Return the file of a path that was found under a name; InputError if it was found under another one."""
        before = self._used.setdefault(path, name)
        if before != name:
            raise InputError(f"{self._files[path]}: is the only file for both {before!r} and {name!r}; one is missing")
        return self._files[path]

    def _candidates(self, folders: Sequence[str], name: str) -> Iterable[str]:
        """Return the files of a name that may fit: of one name there may be as many as images, `FRAME/rgb.png`."""
        paths = self._paths.get(name, [])
        if len(paths) <= _FEW or not folders:
            return paths
        if name not in self._by_folder:
            every, rarest = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
            for path in paths:
                for folder in {*self._folders(path)}:
                    every[folder].append(path)
            for path in paths:
                rarest[min(self._folders(path), key=lambda folder: len(every[folder]), default="")].append(path)
            self._by_folder[name] = every, rarest
        every, rarest = self._by_folder[name]
        # all folders of the file are among these, or these among those of the file
        within = (rarest.get(folder, []) for folder in dict.fromkeys(["", *folders]))
        fewest = min(folders, key=lambda folder: len(every.get(folder, [])))
        return dict.fromkeys(chain(*within, every.get(fewest, [])))

    def _fits(self, folders: Sequence[str], path: str) -> bool:
        own = self._folders(path)
        return _is_within(own, folders) or _is_within(folders, own)

    def _folders(self, path: str) -> Sequence[str]:
        own = PurePosixPath(path).parts[:-1]
        return own[1:] if own and own[0] == self._tops.get(getattr(self._files[path], "archive", None)) else own


def _is_within(some: Sequence[str], all_of: Sequence[str]) -> bool:
    """Return whether a sequence has the items of another in their order."""
    rest = iter(all_of)
    return all(item in rest for item in some)


def spellings(name: str) -> list[str]:
    """Return the paths that a name in an annotation may mean, the most literal first.

    The name is a path of Linux or Windows or a URL, with `%20` for spaces, or with the path as `?d=`. Drives, `..`, and
    the folders of uploads of Label Studio are not part of the path.
    """
    _, has_query, query = name.partition("?d=")
    address = query if has_query else urlsplit(name).path if "://" in name else name
    found = [] if has_query else [name]
    for text in (address, unquote(address), unquote_plus(address.partition("&")[0])):
        path = _UPLOADED.split(text.replace("\\", "/"))[-1]
        parts = [
            part for part in path.split("/") if part not in ("", ".", "..") and not re.fullmatch("[A-Za-z]:", part)
        ]
        found.append("/".join(parts))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Instances:
    """The instances of an image: ids `H x W` or `L x H x W`, 0 void, and class and crowd flag by id, 255 and 0 first.

    `skipped` has reason and name of each object that could not be used, for the account of the conversion.
    """

    ids: np.ndarray
    cat: list[int]
    iscrowd: list[int]
    skipped: tuple[tuple[str, str], ...] = ()


def number_segments(values: np.ndarray, describe: Callable[[int], tuple[int, int]], classes: Metadata) -> Instances:
    """Assign ids from 1 to the segments of a map, `H x W` or `L x H x W` integers, by increasing value.

    Values of one stuff class become one segment; each thing is a separate segment. `describe` returns `(class, crowd
    flag)` of a value; class 255 is void. The ids are uint8 or uint16.
    """
    flat = values.ravel()
    # in parts, since indices take more memory than the map; one value per run of equal ones: sorting all pixels would
    # take most of the time
    parts = [slice(at, at + _PART) for at in range(0, flat.size, _PART)]
    present = np.unique(np.concatenate([np.unique(flat[part][_run_starts(flat[part])]) for part in parts]))
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
    new_id, ids = new_id.astype(dtype), np.empty(flat.shape, dtype)
    for part in parts:
        start = _run_starts(flat[part])
        run_id = new_id[np.searchsorted(present, flat[part][start])]
        ids[part] = np.repeat(run_id, np.diff(start, append=ids[part].size))
    return Instances(ids.reshape(values.shape), cat, iscrowd)


def _run_starts(values: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def number_objects(
    labels: np.ndarray, numbers: np.ndarray | np.integer, class_of: Callable[[int], int], classes: Metadata
) -> Instances:
    """Assign ids to the segments of a map of labels, `H x W` int64, which are overwritten; see :func:`number_segments`.

    `numbers` are integers of the objects of a label below 2^32, 0 for a crowd: `H x W`, or one for all pixels.
    `class_of` returns the class of a label; 255 for void.
    """

    def describe(value: int) -> tuple[int, int]:
        return class_of(value >> _LABEL_SHIFT), int(value & (1 << _LABEL_SHIFT) - 1 == 0)

    labels <<= _LABEL_SHIFT
    labels |= numbers
    return number_segments(labels, describe, classes)
