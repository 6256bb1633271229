"""Raw Cityscapes (`leftImg8bit/`, `gtFine/`, `gtCoarse/`, or the downloaded zip files) → dataset folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from seamseg.data.folder import IMAGE_EXTENSIONS
from seamseg.formats.cityscapes.labels import EVALUATED, INSTANCES_FROM, LABEL_OF, LICENSE_PLATES, cityscapes_classes
from seamseg.panoptic_map import VOID
from seamseg.prepare.archives import SourceTree, read_map
from seamseg.prepare.convert import Options, Prepared, convert_splits, find_splits, present_splits
from seamseg.prepare.pairs import number_segments
from seamseg.prepare.writer import Frame, Instances, Progress, no_progress
from seamseg.utils.errors import InputError

SPLITS = {"train": ("gtFine", "train"), "val": ("gtFine", "val"), "train_extra": ("gtCoarse", "coarse")}
"""Folder of the source → where its annotations lie, and the name of our list."""

_CLASSES = cityscapes_classes()
_CLASS_OF_LABEL = {label.id: index for index, label in enumerate(EVALUATED)}


def prepare_cityscapes(
    root: str | Path,
    out: str | Path,
    splits: Sequence[str] = tuple(SPLITS),
    workers: int | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda message: None,
    copy: bool = False,
    symlink: bool = False,
) -> Prepared:
    """Convert Cityscapes.

    Stuff keeps one id a class and image; each instance of a thing class has its own id; pixels of a thing class that
    belong to no single instance are one crowd. The 15 labels outside the benchmark become void. `train_extra`, with
    its coarse annotations, becomes the split `coarse`. May be killed at any time and called again; finished splits and
    images are left as they are.

    Parameters
    ----------
    root : folder with `leftImg8bit/` and `gtFine/` or `gtCoarse/`, or with the zip files that hold them
    out : the dataset folder
    splits : which of `train`, `val`, `train_extra`; those that `root` lacks are left out
    workers : processes, None for one a processor
    progress : shows how far it is, see :class:`Progress`
    say : receives lines on what is missing or done already
    copy, symlink : copy photos, or make symbolic links, instead of hard-linking them

    Returns
    -------
    Prepared

    Raises
    ------
    InputError
        if nothing is found, a photo is missing or a file is broken
    """
    tree = SourceTree(root)
    found = find_splits(splits, SPLITS, lambda split: find_frames(tree, split, say), "Cityscapes")
    expected = (
        "leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and, for example, "
        f"gtFine/SPLIT/CITY/*_gtFine_instanceIds.png with SPLIT among {', '.join(found)}{tree.hint}"
    )
    present, missing = present_splits(found, root, expected, say)
    named = {SPLITS[split][1]: frames for split, frames in present.items()}
    options = Options(workers, progress, say, copy, symlink)
    return replace(convert_splits(out, _CLASSES, named, read_instances, options), missing=missing)


def find_frames(
    source: SourceTree | Path, split: str, say: Callable[[str], None] = lambda message: None
) -> list[Frame]:
    """The annotated photos of a split of raw Cityscapes, by name.

    Parameters
    ----------
    source : the raw tree
    split : a key of :data:`SPLITS`
    say : told of photos that have no annotation

    Raises
    ------
    InputError
        if an annotation has no photo
    """
    tree = source if isinstance(source, SourceTree) else SourceTree(source)
    kind = SPLITS[split][0]
    ending = f"_{kind}_instanceIds.png"
    folder = f"leftImg8bit/{split}"
    photos = {city: tree.files(f"{folder}/{city}") for city in tree.folders(folder)}
    frames, lost = [], []
    for city in tree.folders(f"{kind}/{split}"):
        for file_name, annotation in tree.files(f"{kind}/{split}/{city}").items():
            if not file_name.endswith(ending):
                continue
            name = file_name.removesuffix(ending)
            candidates = (photos.get(city, {}).get(f"{name}_leftImg8bit{e}") for e in IMAGE_EXTENSIONS)
            photo = next((file for file in candidates if file is not None), None)
            if photo is None:
                lost.append(tree.root / folder / city / f"{name}_leftImg8bit.png")
            else:
                frames.append(Frame(name, photo, annotation, f"{city}/{photo.name}"))
    if lost:
        lacking = f"{len(lost)} of {len(lost) + len(frames)} annotations of {split} lack theirs"
        raise InputError(f"{lost[0]}: no such photo; {lacking}{tree.hint}")
    bare = sum(file.suffix in IMAGE_EXTENSIONS for files in photos.values() for file in files.values()) - len(frames)
    if bare > 0:
        say(f"{tree.root / folder}: {bare} photos without {ending} in {kind}/, left out")
    return sorted(frames, key=lambda frame: frame.id)


def read_instances(frame: Frame) -> Instances:
    """The instances of an `instanceIds` image: `label * 1000 + number`, or the label alone where none is told apart.

    Raises
    ------
    InputError
        if the file is broken or holds a value that is no Cityscapes label
    """
    values = read_map(frame.annotation)

    def describe(value: int) -> tuple[int, int]:
        alone = value < INSTANCES_FROM
        label = value if alone else value // INSTANCES_FROM
        if label not in LABEL_OF and value != LICENSE_PLATES["instanceIds"]:
            raise InputError(f"{frame.annotation}: {value} is no Cityscapes instance id (label {label} does not exist)")
        return _CLASS_OF_LABEL.get(label, VOID), int(alone)

    return Instances(*number_segments(values, describe, _CLASSES))
