"""Converts folders of images, label images and instance images, with a class list."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from seamseg.prepare.archives import File, read_map
from seamseg.prepare.class_file import ClassList, read_class_list
from seamseg.prepare.convert import DEFAULTS, ConversionOptions, ConversionResult, convert_splits, distinct_ids, id_of
from seamseg.prepare.pairs import FilesByName, by_stem, is_photo, number_objects, tree_files, without_suffix
from seamseg.prepare.writer import Instances, SourceFrame
from seamseg.utils.errors import InputError


def prepare_folders(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path,
    divisor: int = 0,
    suffixes: tuple[str, str, str] = ("", "", ""),
    options: ConversionOptions = DEFAULTS,
) -> ConversionResult:
    """Convert folders of images.

    A label image has a class id at each pixel; an instance image has a number for each object, 0 where objects are not
    separated. Pixels of a thing class with number 0 are a crowd; numbers on stuff are ignored.

    Parameters
    ----------
    splits : by name of the list `(photos, labels)` or `(photos, labels, instances)`; folders or archives
    class_list : INI or JSON, see :func:`seamseg.prepare.class_file.read_class_list`
    divisor : if not 0, label images hold `class * divisor + instance`, and there are no instance images
    suffixes : of the names of images, labels and instances before their extensions, as `_leftImg8bit`
    out, options : see :func:`seamseg.prepare.convert.convert_splits`

    Raises
    ------
    InputError
        if a file is missing or invalid, or has a value that is not in the class list
    """
    listed = read_class_list(class_list)
    if divisor < 0 or divisor == 1:
        raise InputError(f"`divisor={divisor}`: must be 2 or more")
    frames = {name: find_frames(name, folders, suffixes, options) for name, folders in splits.items()}
    if divisor and any(frame.second for group in frames.values() for frame in group):
        raise InputError("with a divisor the labels hold the instances: omit the folder of instances")
    if not divisor and listed.classes.num_thing and all(len(folders) == 2 for folders in splits.values()):
        options.log("no instance images: things become crowds, which are ignored in training")
    read = partial(read_instances, listed=listed, divisor=divisor)
    return convert_splits(out, listed.classes, distinct_ids(frames), read, options)


def find_frames(
    split: str, folders: tuple[str, ...], suffixes: tuple[str, str, str], options: ConversionOptions
) -> list[SourceFrame]:
    """Return the images of a split that have labels, by name."""
    photos = without_suffix(by_stem(tree_files(folders[0], "photos"), is_photo), suffixes[0])
    if not photos:
        raise InputError(f"{folders[0]}: 0 photos found for {split}{_named(suffixes[0])}")
    labels, instances = ({}, {}) if len(folders) < 2 else (_pngs(folders[1], "labels", suffixes[1]), {})
    if len(folders) > 2:
        instances = _pngs(folders[2], "instances", suffixes[2])
    labels_by_name, instances_by_name = FilesByName(labels), FilesByName(instances)
    frames = []
    for stem, photo in photos.items():
        label = labels_by_name.find(stem)
        if label is None:
            continue
        number = instances_by_name.find(stem)
        if instances and number is None:
            raise InputError(f"{photo}: has labels, but no instance image in {folders[2]}{_named(suffixes[2])}")
        frames.append(SourceFrame(id_of(stem), photo, label, photo.name, number))
    if not frames:
        raise InputError(
            f"{folders[1]}: 0 of {len(photos)} photos have labels with the same name{_named(suffixes[1])}; the first "
            f"photo is {next(iter(photos))}, the first label image {next(iter(labels), 'missing')}"
        )
    if len(photos) > len(frames):
        options.log(f"{folders[0]}: {len(photos) - len(frames)} photos without labels, skipped")
    return frames


def _pngs(folder: str, what: str, suffix: str) -> dict[str, File]:
    return without_suffix(by_stem(tree_files(folder, what), lambda name: name.lower().endswith(".png")), suffix)


def _named(suffix: str) -> str:
    return f" (names that end in {suffix!r})" if suffix else ""


def read_instances(frame: SourceFrame, listed: ClassList, divisor: int) -> Instances:
    """Read the instances of an image; InputError if a file is invalid or a value has no class."""
    labels = read_map(frame.annotation).astype(np.int64)
    numbers = np.zeros_like(labels)
    if divisor:
        labels, numbers = labels // divisor, labels % divisor
    elif frame.second is not None:
        numbers = read_map(frame.second).astype(np.int64)
    class_of = partial(listed.class_at, source=frame.annotation)
    return Instances(*number_objects(labels, numbers, class_of, listed.classes))
