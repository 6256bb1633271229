"""What all converters share: their options, the choice of splits, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seamseg.formats.metadata import Metadata
from seamseg.prepare.archives import File, Member
from seamseg.prepare.writer import DatasetWriter, Frame, Link, Progress, Reader, no_progress
from seamseg.utils.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How to convert.

    Attributes
    ----------
    workers : processes, None for one a processor
    progress : shows how far it is, see :class:`seamseg.prepare.writer.Progress`
    say : receives lines on what is missing or done already
    copy : copy photos instead of hard-linking them
    symlink : photos become symbolic links
    """

    workers: int | None = None
    progress: Progress = no_progress
    say: Callable[[str], None] = lambda message: None
    copy: bool = False
    symlink: bool = False

    @property
    def link(self) -> Link:
        """How photos come to their new place"""
        return "copy" if self.copy else "symbolic" if self.symlink else "hard"


DEFAULTS = Options()


@dataclass(frozen=True)
class Prepared:
    """What a converter did: the metadata it wrote, images by list, and the splits of the source that are missing."""

    metadata: Metadata
    splits: dict[str, int]
    missing: list[str] = field(default_factory=list)


def find_splits(
    wanted: Sequence[str], known: Iterable[str], find: Callable[[str], T | None], what: str
) -> dict[str, T | None]:
    """What `find` finds of each wanted split; InputError for a split that the data set `what` does not have."""
    unknown = [split for split in wanted if split not in set(known)]
    if unknown or not wanted:
        name = unknown[0] if unknown else ""
        raise InputError(f"no {what} split is called {name!r}; choose among {', '.join(known)}")
    return {split: find(split) for split in dict.fromkeys(wanted)}


def present_splits(
    found: Mapping[str, T | None], root: str | Path, expected: str, say: Callable[[str], None]
) -> tuple[dict[str, T], list[str]]:
    """The splits of which something was found, and the names of the others, which are said.

    Raises
    ------
    InputError
        if nothing was found at all; `expected` says what `root` should hold
    """
    present = {split: content for split, content in found.items() if content}
    missing = [split for split in found if split not in present]
    if not present:
        raise InputError(f"{root}: 0 images found; expected {expected}")
    for split in missing:
        say(f"{root}: no {split}, left out")
    return present, missing


def convert_splits(
    out: str | Path, classes: Metadata, splits: Mapping[str, Sequence[Frame]], read: Reader, options: Options
) -> Prepared:
    """Write the splits that `out` does not have yet.

    Parameters
    ----------
    out : the dataset folder
    classes : of the data set
    splits : frames by the name of their list
    read : finds the instances of a frame; picklable
    options : how

    Raises
    ------
    InputError
        if a file is broken or does not fit, or two photos claim one id
    """
    owner: dict[str, tuple[str, File]] = {}
    for name, frames in splits.items():
        for frame in frames:
            for file in (frame.photo, frame.annotation, frame.second):
                if isinstance(file, Member):
                    file.check_rival()
            split, photo = owner.setdefault(frame.id, (name, frame.photo))
            if str(photo) != str(frame.photo):
                raise InputError(f"{frame.photo}: {photo} has the same name ({split}, {name}): rename one of them")
    writer = DatasetWriter(out, classes, options.workers, options.progress, options.link)
    for name, frames in splits.items():
        if writer.is_finished(name, frames):
            options.say(
                f"{name}: {len(frames)} images, prepared already; to redo it, delete {writer.root / 'lst' / name}.txt"
            )
        else:
            writer.add_split(name, frames, read)
    return Prepared(writer.finish(), {name: len(frames) for name, frames in splits.items()})


def distinct_ids(splits: Mapping[str, Sequence[Frame]]) -> dict[str, list[Frame]]:
    """The frames, with `SPLIT_` before all ids if two splits have a name in common, as `train/001.jpg, val/001.jpg`."""
    seen: set[str] = set()
    for frames in splits.values():
        ids = {frame.id for frame in frames}
        if ids & seen:
            return {name: [replace(f, id=f"{name}_{f.id}") for f in group] for name, group in splits.items()}
        seen |= ids
    return {name: list(frames) for name, frames in splits.items()}


def id_of(file_name: str) -> str:
    """The id of an image from its name: without ending, `_` for the folders."""
    return str(PurePosixPath(file_name).with_suffix("")).strip("/").replace("/", "_")


def ordered_classes(entries: Sequence[Mapping[str, Any]]) -> tuple[Metadata, dict[int, int]]:
    """Classes of a data set from those of a source, stuff first, else in their order.

    Parameters
    ----------
    entries : mappings with `id` (in the source), `name`, `thing` (bool) and `color` (`[r, g, b]` or None)

    Returns
    -------
    classes : without images
    class_of : id in the source → class
    """
    ordered = [e for e in entries if not e["thing"]] + [e for e in entries if e["thing"]]
    classes = Metadata(
        num_stuff=sum(not e["thing"] for e in ordered),
        num_thing=sum(bool(e["thing"]) for e in ordered),
        categories=[str(e["name"]) for e in ordered],
        palette=[_triple(e.get("color") or distinct_colour(k + 1)) for k, e in enumerate(ordered)],
        original_ids=[int(e["id"]) for e in ordered],
    )
    return classes, {int(e["id"]): k for k, e in enumerate(ordered)}


def distinct_colour(number: int) -> tuple[int, int, int]:
    """A colour unlike those of other numbers: the bits of it, in turn, are the high bits of red, green, blue."""
    channels = [0, 0, 0]
    for bit in range(24):
        channels[bit % 3] |= (number >> bit & 1) << 7 - bit // 3
    return _triple(channels)


def _triple(colour: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (int(channel) for channel in colour)
    return red, green, blue
