"""Finding the photos that `predict` works on, and names for their outputs."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

from seamseg.predict.sources.base import PHOTO_ENDINGS, Container, Source
from seamseg.predict.sources.shards import Shard, is_shard
from seamseg.predict.sources.video import Video, is_video, require_decoder
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes
from seamseg.utils.urls import expand_numbers, find_urls, is_url, relative_names

LIST_ENDING = ".txt"


def find_sources(
    inputs: str | Path | Sequence[str | Path],
    out: Path | None = None,
    is_output: Callable[[str], bool] = lambda place: False,
) -> list[Source | Container]:
    """The photos of a file, folder (with its sub-folders), glob (`**` for any depth), URL, list, video or tar shards.

    A folder is searched for the endings of :data:`PHOTO_ENDINGS`, hidden files aside; a file or glob is taken at its
    word. `LIST.txt`, or `@LIST`, has a path or URL a line, relative to the folder of the list or else to the working
    folder; `#` begins a remark. Shards may be numbered as `part-{000..010}.tar`. Photos of a folder or glob are sorted
    by path, others come as named.

    The name of an output is the path below the folder (of a list: below what all have in common) without its ending.
    Where two photos would share one (`a.jpg`, `a.png`), both keep their ending in it. Several inputs are as a list of
    all that each of them means. What is named twice is taken once.

    A folder that may not be looked into is a photo that cannot be read, so that it is told and counted.

    Parameters
    ----------
    inputs : what the user named, one or several
    out : folder of the outputs, which is not searched where it lies below the photos
    is_output : whether a path or URL that was found is that of an output; it is passed over

    Raises
    ------
    InputError
        if there is nothing of the name, no photo in the folder, the folder is `out`, or the list cannot be read
    """
    if isinstance(inputs, (str, Path)):
        return _named(*_meant_by(str(inputs), out, is_output))
    if len(inputs) == 1:
        return find_sources(inputs[0], out, is_output)
    return _named(*_in_common([place for one in inputs for place in _meant_by(str(one), out, is_output)[0]]))


def _meant_by(text: str, out: Path | None, is_output: Callable[[str], bool]) -> tuple[list[str], list[PurePosixPath]]:
    """The paths and URLs of one input, and what they are called below it."""
    path = Path(text)
    if not text.strip():
        raise InputError("IN is empty, is a variable not set? `.` is the working folder")
    if is_url(text):
        root, found_there = find_urls(text, PHOTO_ENDINGS)
        if not (places := [place for place in found_there if not is_output(place)]):
            raise InputError(f"{text}: only outputs of `predict` lie here; choose another place for them")
        return places, [PurePosixPath(p) for p in relative_names(places, root)]
    if text.startswith("@") and not path.exists():
        return _of_list(Path(text[1:]))
    if path.is_dir():
        if out is not None and path.resolve() == out.resolve():
            raise InputError(f"{out}: photos and outputs in one folder would mix; choose another output folder")
        root_folder, found = path, _walk(path, _below(path, out))
        if not found:
            raise InputError(
                f"{text}: 0 images found in this folder; looked for {', '.join(PHOTO_ENDINGS)} (for videos or "
                "shards use a glob, as '*.mp4')"
            )
    elif path.exists():
        if path.suffix.lower() == LIST_ENDING:
            return _of_list(path)
        root_folder, found = path.parent, [path]
    elif len(numbered := expand_numbers(text)) > 1:
        found = [Path(one) for one in numbered]
        missing = next((one for one in found if not one.exists()), None)
        if missing is not None:
            raise InputError(f"{missing}: no such file ({text} names {len(found)})")
        root_folder = Path(os.path.commonpath([one.parent for one in found]))
    elif glob.has_magic(text):
        root_folder = _fixed_part(path)
        skipped = _below(root_folder, out)
        matches = map(Path, glob.iglob(text, recursive=True))
        found = sorted(p for p in matches if p.is_file() and not _inside(p, skipped) and not is_output(str(p)))
        if not found:
            raise InputError(f"{text}: 0 images match this pattern")
    else:
        raise InputError(f"{text}: no such image, video, folder or list")
    return [str(p) for p in found], [PurePosixPath(p.relative_to(root_folder).as_posix()) for p in found]


def _named(places: Sequence[str], relative: Sequence[PurePosixPath]) -> list[Source | Container]:
    found: list[Source | Container] = []
    for place, name, below in zip(places, _unique_names(relative), relative):
        if is_video(place):
            require_decoder(place)
            found.append(Video(place, name, str(below)))
        elif is_shard(place):
            found.append(Shard(place, name.removesuffix(".tar"), str(below)))
        elif not is_url(place) and not place.lower().endswith(PHOTO_ENDINGS) and os.path.isdir(place):
            # one that cannot be listed, or that a list names
            found.append(Source(Path(place), f"{name}/", f"{below}/", problem=_why_not(place)))
        elif is_url(place):
            found.append(Source(Path(relative_names([place], "")[0]), name, str(below), place))
        else:
            found.append(Source(Path(place), name, str(below)))
    return found


def _of_list(path: Path) -> tuple[list[str], list[PurePosixPath]]:
    if not path.exists():
        raise InputError(f"{path}: no such list of images")
    try:
        lines = read_bytes(path, "list of images").decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as a list of images, one path a line: {error}") from None
    places = []
    for line in dict.fromkeys(line.strip() for line in lines):
        beside = path.parent / line
        if not line or (line.startswith("#") and not beside.exists()):
            continue
        places.append(line if is_url(line) or (not beside.exists() and Path(line).exists()) else str(beside))
    if not places:
        raise InputError(f"{path}: this list names 0 images; it needs one path or URL a line")
    return _in_common(places)


def _in_common(places: Sequence[str]) -> tuple[list[str], list[PurePosixPath]]:
    """Each of some paths and URLs once, and what they are called below the folder that all have in common."""
    # one file may be written in several ways
    once: dict[str, str] = {}
    for place in places:
        once.setdefault(place if is_url(place) else os.path.abspath(place), place)
    # absolute, so that `..` and working folders do not show in the names
    full = [relative_names([p], "")[0] if is_url(p) else p.lstrip(os.sep) for p in once]
    common = os.path.commonpath([os.path.dirname(p) for p in full])
    return list(once.values()), [PurePosixPath(os.path.relpath(p, common or ".")) for p in full]


def _why_not(folder: str) -> str:
    """Why a folder cannot be listed."""
    try:
        os.listdir(folder)
    except OSError as error:
        return f"this folder cannot be listed: {error.strerror or error}"
    return "a folder, not a photo"


def _walk(folder: Path, out: Path | None) -> list[Path]:
    found: list[Path] = []

    def note(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise InputError(f"{folder}: this folder cannot be listed: {error.strerror or error}") from error
        found.append(Path(error.filename))

    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, onerror=note, followlinks=True):
        # links may lead in a circle
        if (real := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real)
        here = Path(parent)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not _inside(here / f, out))
        found += [here / f for f in files if not f.startswith(".") and f.lower().endswith(PHOTO_ENDINGS)]
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


def refuse_overwriting(sources: Iterable[Source], outputs: Iterable[Path]) -> None:
    """InputError if an output would replace one of the photos."""
    photos = {_real(source.path) for source in sources if not source.address}
    for output in outputs:
        if _real(output) in photos:
            raise InputError(f"{output}: this output would overwrite an input photo; choose another output folder")


def _real(path: Path) -> str:
    """The path without links; of a million files in few folders at little cost."""
    return os.path.realpath(path) if os.path.islink(path) else os.path.join(_real_folder(path.parent), path.name)


@lru_cache(4096)
def _real_folder(folder: Path) -> str:
    return os.path.realpath(folder)


def refuse_sharing(sources: Iterable[Source], outputs: Iterable[Sequence[Path]]) -> None:
    """InputError if two photos would be written to one file; `outputs` has the files of each photo."""
    owners: dict[str, Source] = {}
    for source, paths in zip(sources, outputs):
        for path in paths:
            # some file systems do not tell cases apart
            owner = owners.setdefault(str(path).casefold(), source)
            if owner is not source:
                raise InputError(
                    f"{owner} and {source} would both be written to {path}: this format has no sub-folders; "
                    "give them different names or predict each folder into an output folder of its own"
                )
