"""The frames of a Cityscapes ground truth, and the files of predictions that belong to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seamseg.formats.cityscapes.labels import LABEL_OF, LABELS, cityscapes_classes
from seamseg.formats.metadata import Metadata
from seamseg.utils.errors import InputError

_LABELS = "_gtFine_labelIds.png"
_INSTANCES = "_gtFine_instanceIds.png"


@dataclass(frozen=True)
class Frame:
    """One annotated photo.

    Attributes
    ----------
    stem : `<city>_<sequence>_<frame>`, with which the names of its files and its predictions begin
    folder : of its annotations
    """

    stem: str
    folder: Path

    @property
    def label_ids(self) -> Path:
        """The label of each pixel"""
        return self.folder / (self.stem + _LABELS)

    @property
    def instance_ids(self) -> Path:
        """The instance of each pixel"""
        return self.folder / (self.stem + _INSTANCES)


def find_frames(gt: str | Path) -> list[Frame]:
    """The frames of a split, by name.

    Parameters
    ----------
    gt : folder of the cities, as `gtFine/val`; or that of one city

    Raises
    ------
    InputError
        if there is no annotation, or two cities have a frame of the same name
    """
    root = Path(gt)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; name the ground truth of a split, as gtFine/val")
    found: dict[str, Path] = {}
    # an annotation may lack either file; whoever needs that one says so
    for path in sorted(p for pattern in ("*", "*/*") for p in root.glob(f"{pattern}_gtFine_*Ids.png")):
        for ending in (_LABELS, _INSTANCES):
            if path.name.endswith(ending):
                stem = path.name.removesuffix(ending)
                if found.setdefault(stem, path.parent) != path.parent:
                    raise InputError(f"{path}: {found[stem]} has a frame of the same name")
    if not found:
        inner = next((p for p in ("val", "gtFine/val", "gtFine") if (root / p).is_dir()), None)
        hint = f"; is it {root / inner}?" if inner else ""
        raise InputError(f"{root}: no annotation CITY/*{_INSTANCES} or CITY/*{_LABELS}{hint}")
    return [Frame(stem, found[stem]) for stem in sorted(found)]


class Stems:
    """Tells of which frame a name is: that of the longest stem with which it begins."""

    def __init__(self, stems: Iterable[str]) -> None:
        self._stems = frozenset(stems)
        self._lengths = sorted({len(s) for s in self._stems}, reverse=True)

    def of(self, name: str) -> str | None:
        """The stem of a file name, None if it belongs to no frame."""
        return next((name[:n] for n in self._lengths if name[:n] in self._stems), None)


def predictions_by_frame(folder: Path, ending: str, frames: Sequence[Frame]) -> Mapping[str, Path]:
    """The predicted file of each frame, anywhere below a folder: the one whose name begins with the frame's.

    Parameters
    ----------
    folder : is searched with all its subfolders
    ending : of the files, as `.png`
    frames : of the ground truth; files of other frames are passed over

    Returns
    -------
    paths : by the frame's stem

    Raises
    ------
    InputError
        if a frame has no file, or several
    """
    stems = Stems(frame.stem for frame in frames)
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            stem = stems.of(name) if name.endswith(ending) else None
            if stem is None:
                continue
            path = Path(parent, name)
            if stem in found:
                raise InputError(f"{path}: a second prediction for {stem}, beside {found[stem]}; keep one")
            found[stem] = path
    check_complete((frame.stem for frame in frames), found, f"{folder}: no prediction {{}}*{ending}")
    return found


def check_complete(stems: Iterable[str], found: Iterable[str], complaint: str) -> None:
    """Raise InputError with `complaint`, in which `{}` stands for the frame, if a frame is not among the found."""
    known = set(found)
    missing = [stem for stem in stems if stem not in known]
    if missing:
        others = f" (nor for {len(missing) - 1} more frames)" if len(missing) > 1 else ""
        raise InputError(complaint.format(missing[0]) + others)


VOID_LABEL = 0
_PHOTO = "_leftImg8bit"


def with_label_ids(metadata: Metadata, source: str) -> Metadata:
    """The classes with Cityscapes' label ids as `original_ids`, without images.

    Classes are Cityscapes' by their names; failing that, all 19 by their `original_ids`.

    Parameters
    ----------
    metadata : of a model or a data set
    source : what they are of, for errors

    Raises
    ------
    InputError
        if a class is no label of Cityscapes, or is stuff on one side and a thing on the other
    """
    by_name = {label.name: label for label in LABELS}
    labels = [by_name.get(name.strip().lower()) for name in metadata.categories]
    if None in labels:
        official = cityscapes_classes()
        if sorted(metadata.original_ids) == sorted(official.original_ids):
            labels = [LABEL_OF[i] for i in metadata.original_ids]
    for index, (name, label) in enumerate(zip(metadata.categories, labels)):
        if label is None:
            raise InputError(
                f"{source}: {name!r} is no class of Cityscapes, so the format cityscapes cannot hold it; "
                "use the format coco"
            )
        if label.has_instances != metadata.is_thing(index):
            kinds = ("stuff", "a thing") if label.has_instances else ("a thing", "stuff")
            raise InputError(
                f"{source}: {name!r} is {kinds[0]} here but {kinds[1]} in Cityscapes, so the format cityscapes cannot "
                "hold it; use the format coco"
            )
    ids = [label.id for label in labels if label is not None]
    twice = next((k for k, i in enumerate(ids) if i in ids[:k]), None)
    if twice is not None:
        raise InputError(
            f"{source}: two classes are {metadata.categories[twice]!r}, which the format cityscapes cannot tell apart; "
            "use the format coco"
        )
    return replace(metadata.without_images(), original_ids=ids)


def frame_name(name: str) -> str:
    """`<city>_<sequence>_<frame>` of a photo: its name without folders and without `_leftImg8bit`."""
    return name.rpartition("/")[2].removesuffix(_PHOTO)


def city_of(frame: str) -> str:
    """The folder of a frame: what stands before its first `_`, `unknown` where that is no name for a folder."""
    city, underscore, _ = frame.partition("_")
    return city if underscore and city and not city.startswith(".") else "unknown"
