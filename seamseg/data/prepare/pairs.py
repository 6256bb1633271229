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
    """All files of a folder and its sub-folders, or of an archive, by path below it.

    Raises
    ------
    InputError
        if there is neither folder nor archive; it calls it `what`
    """
    path = Path(folder)
    if not path.exists():
        raise InputError(f"{path}: no such folder or archive ({what})")
    tree = SourceTree(path, mounts=())
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


def partner(files: Mapping[str, File], stem: str) -> File | None:
    """The file of that stem; if the folders are laid out otherwise, the only one whose last part is that of `stem`."""
    if stem in files:
        return files[stem]
    name = PurePosixPath(stem).name
    same = [file for other, file in files.items() if PurePosixPath(other).name == name]
    return same[0] if len(same) == 1 else None
