"""Converts raw Cityscapes (`leftImg8bit/`, `gtFine/`, `gtCoarse/`, or the downloaded zip files)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from seamseg.maps.folder import IMAGE_EXTENSIONS
from seamseg.maps.formats.cityscapes.labels import EVALUATED, INSTANCES_FROM, cityscapes_classes, label_of_instance
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.archives import SourceTree, read_map
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits, find_splits
from seamseg.maps.prepare.pairs import Instances, number_segments
from seamseg.maps.prepare.writer import SourceFrame
from seamseg.utils.errors import InputError

SPLITS = {"train": ("gtFine", "train"), "val": ("gtFine", "val"), "train_extra": ("gtCoarse", "coarse")}
"""Annotation folder and name of the list, by split of the source."""

_CLASSES = cityscapes_classes()
_CLASS_OF_LABEL = {label.id: index for index, label in enumerate(EVALUATED)}


def prepare_cityscapes(
    root: str | Path,
    out: str | Path,
    splits: Sequence[str] = tuple(SPLITS),
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert Cityscapes: `root` holds `leftImg8bit/` and `gtFine/` or `gtCoarse/`, or their zip files.

    Stuff has one id per class and image; each instance of a thing class has its own id; pixels of a thing class that
    belong to no single instance are one crowd. The 15 labels outside the benchmark become void. `train_extra`, with its
    coarse annotations, becomes the split `coarse`; splits missing in `root` are skipped. Call it again after an
    interruption: finished splits and images are kept unless their sources have changed.
    """
    options, tree = options.begin(), SourceTree(root)
    lists = {split: name for split, (_, name) in SPLITS.items()}
    expected = (
        "leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and, for example, "
        f"gtFine/SPLIT/CITY/*_gtFine_instanceIds.png with SPLIT among {', '.join(splits)}{tree.hint}"
    )
    found = find_splits(root, splits, lists, partial(find_frames, tree), expected, options)
    return convert_splits(out, _CLASSES, found, read_instances, options)


def find_frames(tree: SourceTree, split: str, options: ConversionOptions) -> list[SourceFrame]:
    """Return the annotated images of a split of raw Cityscapes, by name; InputError if an annotation has no image."""
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
                frames.append(SourceFrame(name, photo, annotation, f"{city}/{photo.name}"))
    if lost:
        lacking = f"{len(lost)} of {len(lost) + len(frames)} annotations of {split} lack their image"
        raise InputError(f"{lost[0]}: no such image; {lacking}{tree.hint}")
    files = {f"{city}/{name}": file for city, of_city in photos.items() for name, file in of_city.items()}
    options.skip_unused(files, (frame.image for frame in frames), f"file without {ending} in {kind}/")
    return sorted(frames, key=lambda frame: frame.id)


def read_instances(frame: SourceFrame) -> Instances:
    """Read an `instanceIds` image: `label * 1000 + number`, or the label alone for a crowd or stuff."""

    def describe(value: int) -> tuple[int, int]:
        label = int(label_of_instance(np.array(value), frame.annotation))
        return _CLASS_OF_LABEL.get(label, VOID), int(value < INSTANCES_FROM)

    return number_segments(read_map(frame.annotation), describe, _CLASSES)
