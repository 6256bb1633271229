"""Which photos `predict` works on, and what their outputs are called."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seamseg.errors import InputError

PHOTO_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
    ".gif",
    ".ppm",
    ".pgm",
    ".avif",
)
"""Files that a folder is searched for, whatever the case of their ending."""


@dataclass(frozen=True)
class Source:
    """A photo: its path, the name of its outputs (`/` between folders, no ending), its path below the input folder."""

    path: Path
    name: str
    relative: str


def find_sources(inputs: str | Path, out: Path | None = None) -> list[Source]:
    """The photos of a file, a folder (with its sub-folders) or a glob (`**` for any depth), sorted by path.

    A folder is searched for the endings of :data:`PHOTO_ENDINGS`, hidden files aside; a file or glob is taken at its
    word. The name of an output is the path below the folder without its ending. Where two photos would share one
    (`a.jpg`, `a.png`), both keep their ending in it.

    Parameters
    ----------
    inputs : what the user named
    out : folder of the outputs, which is not searched where it lies below the photos

    Raises
    ------
    InputError
        if there is nothing of the name, no photo in the folder, or the folder is `out`
    """
    text = str(inputs)
    path = Path(inputs)
    if path.is_dir():
        if out is not None and path.resolve() == out.resolve():
            raise InputError(f"{out}: photos and outputs in one folder would mix; choose another output folder")
        root, found = path, _walk(path, _below(path, out))
        if not found:
            raise InputError(f"{text}: 0 images found in this folder; looked for {', '.join(PHOTO_ENDINGS)}")
    elif path.exists():
        root, found = path.parent, [path]
    elif glob.has_magic(text):
        root = _fixed_part(path)
        skipped = _below(root, out)
        matches = map(Path, glob.iglob(text, recursive=True))
        found = sorted(p for p in matches if p.is_file() and not _inside(p, skipped))
        if not found:
            raise InputError(f"{text}: 0 images match this pattern")
    else:
        raise InputError(f"{text}: no such image or folder")
    relative = [PurePosixPath(p.relative_to(root).as_posix()) for p in found]
    return [Source(p, name, str(below)) for p, name, below in zip(found, _unique_names(relative), relative)]


def _walk(folder: Path, out: Path | None) -> list[Path]:
    found = []
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        # links may lead in a circle
        if (real := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real)
        here = Path(parent)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not _inside(here / f, out))
        found += [here / f for f in files if not f.startswith(".") and Path(f).suffix.lower() in PHOTO_ENDINGS]
    return sorted(found)


def _below(root: Path, out: Path | None) -> Path | None:
    """`out` if it lies below `root`: one that is `root`, or holds it, would hide photos that were asked for."""
    if out is None or out.resolve() == root.resolve():
        return None
    return out if _inside(out, root) else None


def _inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(folder.resolve())


def _fixed_part(pattern: Path) -> Path:
    """The folders before the first that holds a wildcard."""
    parts = pattern.parent.parts
    magic = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:magic]) if magic else Path(".")


def _unique_names(paths: Sequence[PurePosixPath]) -> list[str]:
    names = [str(p.with_suffix("")) for p in paths]
    while True:
        # compared without case, since some file systems do so; full names that still meet are one file there anyway
        count = Counter(name.casefold() for name in names)
        renamed = [str(p) if count[name.casefold()] > 1 else name for p, name in zip(paths, names)]
        if renamed == names:
            return names
        names = renamed


def refuse_overwriting(sources: Sequence[Source], outputs: Sequence[Path]) -> None:
    """InputError if an output would replace one of the photos."""
    photos = {source.path.resolve() for source in sources}
    for output in outputs:
        if output.resolve() in photos:
            raise InputError(f"{output}: this output would overwrite an input photo; choose another output folder")


def refuse_sharing(sources: Sequence[Source], outputs: Sequence[Sequence[Path]]) -> None:
    """InputError if two photos would be written to one file; `outputs` has the files of each photo."""
    owners: dict[str, Source] = {}
    for source, paths in zip(sources, outputs):
        for path in paths:
            # some file systems do not tell cases apart
            owner = owners.setdefault(str(path).casefold(), source)
            if owner is not source:
                raise InputError(
                    f"{owner.path} and {source.path} would both be written to {path}: this format has no sub-folders; "
                    "give them different names or predict each folder into an output folder of its own"
                )
