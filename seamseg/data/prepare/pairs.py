"""Photos and annotations that belong together by their names, in folders with or without sub-folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from seamseg.data.folder import IMAGE_ENDINGS
from seamseg.data.prepare.archives import File, SourceTree
from seamseg.errors import InputError

PHOTO_ENDINGS = (*IMAGE_ENDINGS, ".bmp", ".tif", ".tiff", ".webp")
"""Kinds of photos that are taken; those that a dataset folder cannot hold become PNG."""


def is_photo(name: str) -> bool:
    """True if the ending says so, in any case."""
    return name.lower().endswith(PHOTO_ENDINGS)


def tree_files(folder: str | Path, what: str) -> dict[str, File]:
    """All files of a folder and its sub-folders and of the archives in it, or of an archive, by path below it.

    Raises
    ------
    InputError
        if there is neither folder nor archive; it calls it `what`
    """
    path = Path(folder)
    if not path.exists():
        raise InputError(f"{path}: no such folder or archive ({what})")
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
    """Files by path without ending, those whose name `keep` accepts; InputError if two differ in their ending only."""
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
    """Files by stem less `suffix`; those without it are left out."""
    return {stem.removesuffix(suffix): file for stem, file in files.items() if stem.endswith(suffix)}


class Partners:
    """Files by path, which are found if their folders are laid out otherwise, too.

    Parameters
    ----------
    files : by path, with or without endings
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
        """The file of that path, else the only one whose last part is that of `path`; None if there is no such file."""
        return self._files.get(path) or self._by_last_part.get(PurePosixPath(path).name)
