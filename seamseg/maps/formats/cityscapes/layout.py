"""The folder layout of Cityscapes: frames of the ground truth, files of predictions, classes of other data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seamseg.maps.formats.cityscapes.labels import LABEL_OF, LABELS, cityscapes_classes
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden

_LABELS = "_gtFine_labelIds.png"
_INSTANCES = "_gtFine_instanceIds.png"


@dataclass(frozen=True)
class CityscapesFrame:
    """An annotated image: `<city>_<sequence>_<frame>`, the start of the names of its files, and their folder."""

    stem: str
    folder: Path

    @property
    def label_ids(self) -> Path:
        """Path of the map of labels."""
        return self.folder / (self.stem + _LABELS)

    @property
    def instance_ids(self) -> Path:
        """Path of the map of instances."""
        return self.folder / (self.stem + _INSTANCES)


def find_frames(gt: str | Path) -> list[CityscapesFrame]:
    """Find the frames of a split, sorted by name, in the folder of its cities, such as `gtFine/val`, or of one city."""
    root = Path(gt)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; name the ground truth of a split, such as gtFine/val")
    found: dict[str, Path] = {}
    # either of the two files may be missing; readers report the one they need
    for path in sorted(p for pattern in ("*", "*/*") for p in root.glob(f"{pattern}_gtFine_*Ids.png")):
        if is_hidden(path.name) or is_hidden(path.parent.name):
            continue
        for ending in (_LABELS, _INSTANCES):
            if path.name.endswith(ending):
                stem = path.name.removesuffix(ending)
                if found.setdefault(stem, path.parent) != path.parent:
                    raise InputError(f"{path}: {found[stem]} has a frame with the same name")
    if not found:
        inner = next((p for p in ("val", "gtFine/val", "gtFine") if (root / p).is_dir()), None)
        hint = f"; did you mean {root / inner}?" if inner else ""
        raise InputError(f"{root}: no annotation CITY/*{_INSTANCES} or CITY/*{_LABELS}{hint}")
    return [CityscapesFrame(stem, found[stem]) for stem in sorted(found)]


class FrameStems:
    """Find the frame of a file name: that of the longest stem at its start."""

    def __init__(self, stems: Iterable[str]) -> None:
        self._stems = frozenset(stems)
        self._lengths = sorted({len(s) for s in self._stems}, reverse=True)

    def of(self, name: str) -> str | None:
        """Return the stem of a file name, None if it belongs to no frame."""
        return next((name[:n] for n in self._lengths if name[:n] in self._stems), None)


def predictions_by_frame(folder: Path, ending: str, frames: Sequence[CityscapesFrame]) -> Mapping[str, Path]:
    """Find the predicted file of each frame, by stem, anywhere in a folder: the one whose name starts with the stem.

    Files of other frames are ignored; a frame without a file, or with several, is an InputError.
    """
    stems = FrameStems(frame.stem for frame in frames)
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            stem = stems.of(name) if name.endswith(ending) and not is_hidden(name) else None
            if stem is None:
                continue
            path = Path(parent, name)
            if stem in found:
                raise InputError(f"{path}: a second prediction for {stem}, next to {found[stem]}; keep one")
            found[stem] = path
    check_complete((frame.stem for frame in frames), found, f"{folder}: no prediction {{}}*{ending}")
    return found


def check_complete(stems: Iterable[str], found: Iterable[str], message: str) -> None:
    """Raise InputError with `message`, formatted with the first missing stem, unless all stems are found."""
    present = set(found)
    missing = [stem for stem in stems if stem not in present]
    if missing:
        others = f" (and {len(missing) - 1} more frames)" if len(missing) > 1 else ""
        raise InputError(message.format(missing[0]) + others)


VOID_LABEL = 0
_PHOTO = "_leftImg8bit"


def with_label_ids(metadata: Metadata, source: str) -> Metadata:
    """Replace the `original_ids` of classes by the label ids of Cityscapes; without images.

    Classes are identified by name, or else, if there are all 19, by their `original_ids`. A class that is no label, or
    stuff in one and a thing in the other, is an InputError with `source` in front.
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
                f"{source}: {name!r} is not a class of Cityscapes, which the format cityscapes requires; "
                "use the format coco"
            )
        if label.has_instances != metadata.is_thing(index):
            kinds = ("stuff", "a thing") if label.has_instances else ("a thing", "stuff")
            raise InputError(
                f"{source}: {name!r} is {kinds[0]} here but {kinds[1]} in Cityscapes, so it does not fit the "
                "format cityscapes; use the format coco"
            )
    ids = [label.id for label in labels if label is not None]
    twice = next((k for k, i in enumerate(ids) if i in ids[:k]), None)
    if twice is not None:
        raise InputError(
            f"{source}: two classes are {metadata.categories[twice]!r}, which the format cityscapes does not support; "
            "use the format coco"
        )
    return replace(metadata, images=[], original_ids=ids)


def frame_name(name: str) -> str:
    """Return `<city>_<sequence>_<frame>` of an image: its name without folders and without `_leftImg8bit`."""
    return name.rpartition("/")[2].removesuffix(_PHOTO)


def city_of(frame: str) -> str:
    """Return the city folder of a frame: the name up to its first `_`, `unknown` if this is not a folder name."""
    city, underscore, _ = frame.partition("_")
    return city if underscore and city and not city.startswith(".") else "unknown"
