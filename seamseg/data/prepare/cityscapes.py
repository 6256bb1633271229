"""Raw Cityscapes (`leftImg8bit/`, `gtFine/`, `gtCoarse/`) → dataset folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from seamseg.data.folder import IMAGE_ENDINGS
from seamseg.data.images import open_mask
from seamseg.data.metadata import Metadata
from seamseg.data.prepare.cityscapes_labels import EVALUATED, LABELS, cityscapes_classes
from seamseg.data.prepare.writer import DatasetWriter, Frame, Instances, Progress, no_progress
from seamseg.errors import InputError
from seamseg.structures import VOID

SPLITS = {"train": ("gtFine", "train"), "val": ("gtFine", "val"), "train_extra": ("gtCoarse", "coarse")}
"""Folder of the source → where its annotations lie, and the name of our list."""

_INSTANCES_FROM = 1000
_LICENSE_PLATE = 0xFFFF  # label -1 in 16 bits
_CLASS_OF_LABEL = {label.id: index for index, label in enumerate(EVALUATED)}
_KNOWN_LABELS = {label.id for label in LABELS}
_THINGS = {index for index, label in enumerate(EVALUATED) if label.has_instances}


@dataclass(frozen=True)
class Prepared:
    """What a converter did: the metadata it wrote, images by list, and the splits of the source that are missing."""

    metadata: Metadata
    splits: dict[str, int]
    missing: list[str] = field(default_factory=list)


def prepare_cityscapes(
    root: str | Path,
    out: str | Path,
    splits: Sequence[str] = tuple(SPLITS),
    workers: int | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda message: None,
    copy: bool = False,
) -> Prepared:
    """Convert Cityscapes.

    Stuff keeps one id a class and image; each instance of a thing class has its own id; pixels of a thing class that
    belong to no single instance are one crowd. The 15 labels outside the benchmark become void. `train_extra`, with
    its coarse annotations, becomes the split `coarse`. May be killed at any time and called again; finished splits and
    images are left as they are.

    Parameters
    ----------
    root : folder with `leftImg8bit/` and `gtFine/` or `gtCoarse/`
    out : the dataset folder
    splits : which of `train`, `val`, `train_extra`; those that `root` lacks are left out
    workers : processes, None for one a processor
    progress : shows how far it is, see :class:`Progress`
    say : receives lines on what is missing or done already
    copy : copy photos instead of hard-linking them

    Returns
    -------
    Prepared

    Raises
    ------
    InputError
        if nothing is found, a photo is missing or a file is broken
    """
    root = Path(root)
    unknown = [split for split in splits if split not in SPLITS]
    if unknown or not splits:
        name = unknown[0] if unknown else ""
        raise InputError(f"no Cityscapes split is called {name!r}; choose among {', '.join(SPLITS)}")
    found = {split: find_frames(root, split, say) for split in dict.fromkeys(splits)}
    missing = [split for split, frames in found.items() if not frames]
    if len(missing) == len(found):
        raise InputError(
            f"{root}: 0 images found; expected leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and, for example, "
            f"gtFine/SPLIT/CITY/*_gtFine_instanceIds.png with SPLIT among {', '.join(found)}"
        )
    for split in missing:
        say(f"{root}: no {split}, left out")
    writer = DatasetWriter(out, cityscapes_classes(), workers, progress, copy)
    done = {}
    for split, frames in found.items():
        name = SPLITS[split][1]
        if not frames:
            continue
        if writer.is_finished(name, frames):
            say(f"{name}: {len(frames)} images, prepared already")
        else:
            writer.add_split(name, frames, read_instances)
        done[name] = len(frames)
    return Prepared(writer.finish(), done, missing)


def find_frames(root: Path, split: str, say: Callable[[str], None] = lambda message: None) -> list[Frame]:
    """The annotated photos of a split of raw Cityscapes, by name.

    Parameters
    ----------
    root : of the raw tree
    split : a key of :data:`SPLITS`
    say : told of photos that have no annotation

    Raises
    ------
    InputError
        if an annotation has no photo
    """
    kind = SPLITS[split][0]
    ending = f"_{kind}_instanceIds.png"
    photos = root / "leftImg8bit" / split
    annotations = sorted((root / kind / split).glob(f"*/*{ending}"), key=lambda path: path.name)
    frames, lost = [], []
    for annotation in annotations:
        name, city = annotation.name.removesuffix(ending), annotation.parent.name
        candidates = (photos / city / f"{name}_leftImg8bit{e}" for e in IMAGE_ENDINGS)
        photo = next((path for path in candidates if path.is_file()), None)
        if photo is None:
            lost.append(photos / city / f"{name}_leftImg8bit.png")
        else:
            frames.append(Frame(name, photo, annotation, f"{city}/{photo.name}"))
    if lost:
        lacking = f"{len(lost)} of {len(annotations)} annotations of {split} lack theirs"
        raise InputError(f"{lost[0]}: no such photo; {lacking}")
    bare = sum(path.suffix in IMAGE_ENDINGS for path in photos.glob("*/*")) - len(frames)
    if bare > 0:
        say(f"{photos}: {bare} photos without {ending} in {kind}/, left out")
    return frames


def read_instances(frame: Frame) -> Instances:
    """The instances of an `instanceIds` image: `label * 1000 + number`, or the label alone where none is told apart.

    Raises
    ------
    InputError
        if the file is broken or holds a value that is no Cityscapes label
    """
    values = open_mask(frame.annotation)
    if values.max() > 0xFFFF:
        raise InputError(f"{frame.annotation}: {values.max()} is no Cityscapes instance id")
    present = np.zeros(0x10000, dtype=bool)
    present[values] = True
    new_id = np.zeros(0x10000, dtype=np.uint16)
    cat, iscrowd = [VOID], [0]
    for value in np.flatnonzero(present).tolist():
        alone = value < _INSTANCES_FROM
        label = value if alone else value // _INSTANCES_FROM
        if label not in _KNOWN_LABELS and value != _LICENSE_PLATE:
            raise InputError(f"{frame.annotation}: {value} is no Cityscapes instance id (label {label} does not exist)")
        category = _CLASS_OF_LABEL.get(label)
        if category is not None:
            new_id[value] = len(cat)
            cat.append(category)
            iscrowd.append(int(alone and category in _THINGS))
    return Instances(new_id[values], cat, iscrowd)
