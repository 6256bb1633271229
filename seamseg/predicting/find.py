"""Find the images that `predict` works on, and choose the names of their outputs."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from seamseg.maps.images import PHOTO_ENDINGS, image_files
from seamseg.maps.predictions import MANIFEST
from seamseg.predicting.source import VIDEO_ENDINGS, Source, Video, is_video, require_decoder
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError, counted
from seamseg.utils.files import listed_names, nearest_path, read_bytes, refuse_url
from seamseg.utils.output import echo

LIST_ENDING = ".txt"
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
_MADE = (MANIFEST, "metadata.bin")
"""Files of a folder that `predict`, `prepare` or `train` has written."""


def find_sources(
    inputs: str | Path | Sequence[str | Path], out: Path | None = None, limit: int | None = None
) -> list[Source | Video]:
    """Find the images of one or several files, folders (with sub-folders), globs (`**` for any depth), lists, videos.

    A folder is searched for the endings of :data:`PHOTO_ENDINGS`, without hidden files; files that are named, or match
    a glob, are used whatever their ending. `LIST.txt`, or `@LIST`, has one local path a line, relative to the folder
    of the list or else to the working folder; a line that starts with `#` is a comment. Below a folder or `**`, folders
    that `predict`, `prepare` or `train` has written are left out, with a line on stderr; `out`, where they go, is not
    searched either. Images of a folder or glob are sorted by path, others keep the given order.

    The name of an output is the path relative to the folder (of a list: to the common parent folder), without its
    ending. Where two images would have the same name (`a.jpg`, `a.png`), both keep their ending in it. Several inputs
    are treated as a list of all images that they name. Duplicates are removed. With a `limit` there are as many images,
    and each video has as many frames.

    InputError if an input does not exist or is a URL, there are no images, the folder is `out`, or the list cannot be
    read.
    """
    given = [inputs] if isinstance(inputs, (str, Path)) else inputs
    if not given:
        raise InputError("`inputs` is empty: name images, videos, folders or lists")
    found = [_expand(str(one), out) for one in given]
    addresses, relative = found[0] if len(found) == 1 else _in_common([one for some, _ in found for one in some])
    for address in filter(is_video, addresses):
        require_decoder(address)
    sources = [
        Video(address, name, str(path)) if is_video(address) else Source(Path(address), name, str(path))
        for address, name, path in zip(addresses, _unique_names(relative), relative)
    ]
    if limit is None:
        return sources
    left_out = set(map(id, [source for source in sources if isinstance(source, Source)][limit:]))
    chosen = [source for source in sources if id(source) not in left_out]
    return [replace(source, limit=limit) if isinstance(source, Video) else source for source in chosen]


Found = tuple[list[str], list[PurePosixPath]]
"""Paths, and their paths relative to the input"""


def _expand(text: str, out: Path | None) -> Found:
    """Return the paths that one input names."""
    path = Path(text)
    if not text.strip():
        raise InputError("IN is empty, is a variable not set? `.` is the working folder")
    if text.startswith("@") and not os.path.exists(text):
        return _of_list(Path(text[1:]))
    if os.path.isdir(text):
        return _of_folder(text, out)
    refuse_url(text)
    if text.lower().endswith(TAR_ENDINGS):
        raise InputError(f"{text}: `python -m seamseg.contrib.ray --input webdataset` predicts the images of tars")
    if os.path.exists(text):
        return _of_list(path) if path.suffix.lower() == LIST_ENDING else ([str(path)], [PurePosixPath(path.name)])
    if glob.has_magic(text):
        return _of_glob(text, out)
    raise InputError(f"{text}: no such image, video, folder or list{nearest_path(text)}")


def _relative_to(root: Path, found: Sequence[Path]) -> Found:
    return [str(p) for p in found], [PurePosixPath(p.relative_to(root).as_posix()) for p in found]


def _of_folder(text: str, out: Path | None) -> Found:
    folder = Path(text)
    if out is not None and folder.resolve() == out.resolve():
        raise InputError(f"{out}: images and outputs in one folder would mix; choose another output folder")
    files = image_files(folder, _left_out(folder, out), (*PHOTO_ENDINGS, *VIDEO_ENDINGS))
    found = [path for path in files if not is_video(path.name)]
    if found and len(found) < len(files) and is_main_process():
        videos = counted(len(files) - len(found), "video")
        echo(f"{text}: {videos} skipped; use a glob for videos, such as '*.mp4'", file=sys.stderr)
    if not found:
        raise InputError(
            f"{text}: 0 images found in this folder; looked for {', '.join(PHOTO_ENDINGS)} (for videos use a "
            "glob, as '*.mp4')"
        )
    return _relative_to(folder, found)


def _of_glob(pattern: str, out: Path | None) -> Found:
    root = _fixed_part(Path(pattern))
    # a pattern of given depth names the folders
    left_out = _left_out(root, out) if "**" in pattern else lambda folder: False
    matches = map(Path, glob.iglob(pattern, recursive=True))
    found = sorted(
        p for p in matches if p.is_file() and not any(left_out(root / f) for f in p.relative_to(root).parents)
    )
    if not found:
        raise InputError(f"{pattern}: 0 images match this pattern")
    return _relative_to(root, found)


def _of_list(path: Path) -> Found:
    if not os.path.exists(path):
        raise InputError(f"{path}: no such list of images{nearest_path(path)}")
    addresses = []
    for line in dict.fromkeys(listed_names(read_bytes(path, what := "list of images"), path, what)):
        # Windows writes back slashes, which are a part of the name elsewhere
        spellings = [path.parent / line, line, path.parent / line.replace("\\", "/"), line.replace("\\", "/")]
        # unlike methods of `Path`, this is no error for a name that no file can have
        found = next(filter(os.path.exists, map(str, spellings)), None)
        if found is not None or not line.startswith("#"):
            refuse_url(line, f"{path}: ")
            addresses.append(found or str(spellings[2]))
    if not addresses:
        raise InputError(f"{path}: this list names 0 images; it needs one path a line")
    return _in_common(addresses)


def _in_common(addresses: Sequence[str]) -> Found:
    """Remove duplicates, and return the paths relative to the common parent folder."""
    # one file may have several spellings
    once: dict[str, str] = {}
    for address in addresses:
        once.setdefault(os.path.abspath(address), address)
    # absolute, so that names contain neither `..` nor the working folder
    full = [p.lstrip(os.sep) or "." for p in once]
    common = os.path.commonpath([os.path.dirname(p) for p in full])
    return list(once.values()), [PurePosixPath(os.path.relpath(p, common or ".")) for p in full]


def _left_out(root: Path, out: Path | None) -> Callable[[Path], bool]:
    """Return a function that tells, with a line, whether a folder below `root` holds results instead of images."""
    own = None if out is None or out.resolve() in root.resolve().parents else out.resolve()

    @lru_cache(None)
    def left_out(folder: Path) -> bool:
        if folder == root or (own is not None and folder.resolve() == own):
            return folder != root
        made = any(os.path.exists(folder / name) for name in _MADE)
        if made and is_main_process():
            echo(f"{folder}: left out, it holds results of seamseg; name it to use its images", file=sys.stderr)
        return made

    return left_out


def _fixed_part(pattern: Path) -> Path:
    """Return the folders before the first wildcard."""
    parts = pattern.parent.parts
    magic = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:magic]) if magic else Path(".")


def _unique_names(paths: Sequence[PurePosixPath]) -> list[str]:
    # "." is the root folder, in a list
    names = [str(p.with_suffix("")) if p.name else "." for p in paths]
    while True:
        uses = Counter(names)
        renamed = [str(p) if uses[name] > 1 else name for p, name in zip(paths, names)]
        if renamed == names:
            return names
        names = renamed
