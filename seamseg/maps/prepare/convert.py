"""Shared parts of the converters: options, selection of splits, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TypeVar

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.prepare.account import Skips, SplitAccount, add_skipped
from seamseg.maps.prepare.archives import File
from seamseg.maps.prepare.pairs import spellings
from seamseg.maps.prepare.writer import DatasetWriter, Link, Reader, SourceFrame
from seamseg.utils.errors import InputError, counted
from seamseg.utils.progress import ProgressCallback, no_progress

T = TypeVar("T")


@dataclass(frozen=True)
class ConversionOptions:
    """Options of a conversion.

    Attributes
    ----------
    workers : number of processes, None for one per processor
    progress : wraps the converted images
    log : called with messages about missing or finished parts
    copy : copy images instead of hard-linking them
    symlink : make symbolic links instead of hard links
    hold_out : fraction of the images, from 0 to below 1, that become the split `val`
    no_crowds : read crowds of COCO instances as single objects
    void_background : leave pixels without a label void where the classes are things only; otherwise they get a stuff
        class `background`, see :func:`seamseg.maps.prepare.class_file.with_background`
    split, skipped : split whose files are found, and what was skipped by split; set by :meth:`begin`, :meth:`of_split`
    """

    workers: int | None = None
    progress: ProgressCallback = no_progress
    log: Callable[[str], None] = lambda message: None
    copy: bool = False
    symlink: bool = False
    hold_out: float = 0.0
    no_crowds: bool = False
    void_background: bool = False
    split: str = ""
    skipped: dict[str, Skips] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out < 1:
            raise InputError(f"`hold_out={self.hold_out:g}`: must be from 0 to below 1")

    @property
    def link(self) -> Link:
        """How images are stored in the dataset folder."""
        return "copy" if self.copy else "symbolic" if self.symlink else "hard"

    def begin(self) -> ConversionOptions:
        """Return the options of one conversion, of which nothing has been skipped yet."""
        return replace(self, skipped={})

    def of_split(self, split: str) -> ConversionOptions:
        """Return the options to find the files of a split, for :meth:`skip`."""
        return replace(self, split=split)

    def skip(self, reason: str, item: object, count: int = 1) -> None:
        """Record that items of the source are not used, with the first of them and a reason as "image without labels".

        Nothing is skipped silently: files and images are recorded here, objects in `Instances.skipped`.
        """
        add_skipped(self.skipped.setdefault(self.split, {}), reason, item, count)

    def skip_unused(
        self,
        files: Mapping[str, File],
        used: Iterable[object],
        reason: str,
        expected: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """Record the files of a folder, by path, that are not among the used ones.

        `reason` is that of a file whose path is `expected`; others are counted by their extension, but not archives and
        annotations in text.
        """
        names = set(map(str, used))
        for path, file in files.items():
            ending = PurePosixPath(path).suffix.lower()
            if str(file) in names:
                continue
            if expected(path):
                self.skip(reason, file)
            elif ending not in _TEXTS_AND_ARCHIVES:
                self.skip(f"other file ({ending or 'without extension'})", file)


VAL = "val"
"""Split of the images that are held out."""

_TEXTS_AND_ARCHIVES = (".json", ".txt", ".xml", ".csv", ".zip", ".tar")


@dataclass(frozen=True)
class ConversionResult:
    """The classes with their images, and number of images and account by list."""

    metadata: Metadata
    splits: dict[str, int]
    accounts: dict[str, SplitAccount]


def find_splits(
    root: str | Path,
    wanted: Sequence[str],
    known: Mapping[str, str],
    find: Callable[[str, ConversionOptions], T | None],
    expected: str,
    options: ConversionOptions,
) -> dict[str, T]:
    """Return what `find` finds of the wanted splits of a public data set, by name of the list, and log what is missing.

    `known` has the names of the lists by split; `find` gets the split and the options of its list. A split that the
    data set does not define, and none with images, are an InputError; `expected` describes the content of the root.
    """
    unknown = [split for split in wanted if split not in known]
    if unknown or not wanted:
        raise InputError(f"no split has the name {''.join(unknown[:1])!r}; choose among {', '.join(known)}")
    found = {split: find(split, options.of_split(known[split])) for split in dict.fromkeys(wanted)}
    if not any(found.values()):
        raise InputError(f"{root}: 0 images found; expected {expected}")
    for split, content in found.items():
        if not content:
            options.log(f"{root}: no {split}, skipped")
    return {known[split]: content for split, content in found.items() if content}


def convert_splits(
    out: str | Path,
    classes: Metadata,
    splits: Mapping[str, Sequence[SourceFrame]],
    read: Reader,
    options: ConversionOptions,
) -> ConversionResult:
    """Write the splits (frames by name of the list) that the dataset folder `out` does not have yet.

    `read`, picklable, reads the instances of a frame. An invalid file is an InputError; the data set then has the other
    images. Two images with one id, or none or all images held out, are one, too.
    """
    if options.hold_out:
        splits = _with_held_out(splits, options.hold_out)
    owner: dict[str, tuple[str, File]] = {}
    for name, frames in splits.items():
        for frame in frames:
            split, photo = owner.setdefault(frame.id, (name, frame.image))
            if str(photo) != str(frame.image):
                raise InputError(f"{frame.image}: {photo} has the same name ({split}, {name}): rename one of them")
    writer = DatasetWriter(out, classes, options.workers, options.progress, options.link)
    others = [path.stem for path in sorted(writer.root.glob("lst/*.txt")) if path.stem not in splits]
    writer.check_images([frame for frames in splits.values() for frame in frames], others)
    for name, frames in splits.items():
        _convert_split(writer, name, frames, read, options)
    metadata = writer.finish()
    accounts = {name: account for name, account in writer.accounts.items() if name in splits}
    return ConversionResult(metadata, {name: len(frames) for name, frames in splits.items()}, accounts)


def _convert_split(
    writer: DatasetWriter, name: str, frames: Sequence[SourceFrame], read: Reader, options: ConversionOptions
) -> None:
    skipped, path = options.skipped.get(name, {}), writer.root / "lst" / f"{name}.txt"
    if writer.is_finished(name, frames, read, skipped):
        how = "from the same files with the same options"
        if name not in writer.accounts:
            how = (
                "by a converter that keeps no record of its sources: their changes go unnoticed; to convert it again, "
                f"delete {path}"
            )
        options.log(f"{name}: {counted(len(frames), 'image')}, already prepared {how}")
        return
    before = set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()
    count = writer.add_split(name, frames, read, skipped)
    if before:
        lost = len(before - {frame.id for frame in frames})
        options.log(
            f"{name}: files or options have changed since the last conversion: {count} of {len(frames)} images "
            f"converted again, {lost} taken off the list"
        )
    for other, shared in writer.shared_images(name).items():
        options.log(f"{name}: {shared} of its images are also in the list {other}")


def _with_held_out(splits: Mapping[str, Sequence[SourceFrame]], fraction: float) -> Mapping[str, Sequence[SourceFrame]]:
    """Move a fraction of the images to the split `val`; a hash of their ids chooses them."""
    if VAL in splits:
        raise InputError(f"`hold_out={fraction:g}`: there is a split {VAL} already")
    every = (frame.id for frames in splits.values() for frame in frames)
    ids = sorted(every, key=lambda name: sha256(name.encode()).digest())
    held = set(ids[: max(1, round(fraction * len(ids)))])
    parts = {name: [frame for frame in frames if frame.id not in held] for name, frames in splits.items()}
    parts[VAL] = [frame for frames in splits.values() for frame in frames if frame.id in held]
    empty = [name for name, frames in parts.items() if not frames]
    if empty:
        raise InputError(f"`hold_out={fraction:g}`: leaves no image in {empty[0]}")
    return parts


def distinct_ids(splits: Mapping[str, Sequence[SourceFrame]]) -> dict[str, list[SourceFrame]]:
    """Prefix all ids by `SPLIT_` if two splits share an id, as `train/001.jpg` and `val/001.jpg` do."""
    seen: set[str] = set()
    for frames in splits.values():
        ids = {frame.id for frame in frames}
        if ids & seen:
            return {name: [replace(f, id=f"{name}_{f.id}") for f in group] for name, group in splits.items()}
        seen |= ids
    return {name: list(frames) for name, frames in splits.items()}


def id_of(file_name: str) -> str:
    """Return the image id of a file name: without extension, `_` as folder separator."""
    if "\\" in file_name or "://" in file_name:
        file_name = spellings(file_name)[1]
    return str(PurePosixPath(file_name).with_suffix("")).strip("/").replace("/", "_")
