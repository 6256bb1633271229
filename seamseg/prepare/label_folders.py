"""Folders of photos, label pictures and instance pictures, with a class list → dataset folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from seamseg.prepare.archives import File, read_map
from seamseg.prepare.class_file import ClassList, read_class_list
from seamseg.prepare.convert import DEFAULTS, Options, Prepared, convert_splits, distinct_ids, id_of
from seamseg.prepare.pairs import Partners, by_stem, is_photo, number_segments, tree_files, without_suffix
from seamseg.prepare.writer import Frame, Instances
from seamseg.utils.errors import InputError

_LABEL_SHIFT = 32


def prepare_folders(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path,
    divisor: int = 0,
    suffixes: tuple[str, str, str] = ("", "", ""),
    options: Options = DEFAULTS,
) -> Prepared:
    """Convert folders of pictures.

    A label picture holds the id of a class at each pixel; an instance picture a number for each object, 0 where
    objects are not told apart. Pixels of a thing class without a number are a crowd; numbers on stuff mean nothing.

    Parameters
    ----------
    out : the dataset folder
    splits : by name of the list `(photos, labels)` or `(photos, labels, instances)`; folders or archives
    class_list : INI or JSON, see :func:`seamseg.prepare.class_file.read_class_list`
    divisor : if not 0, label pictures hold `class * divisor + instance`, and there are no instance pictures
    suffixes : what the names of photos, labels and instances end in before their endings, as `_leftImg8bit`
    options : how

    Raises
    ------
    InputError
        if a file is missing, broken or holds a value that the class list does not have
    """
    listed = read_class_list(class_list)
    if divisor < 0 or divisor == 1:
        raise InputError(f"the divisor must be 2 or more, got {divisor}")
    frames = {name: find_frames(name, folders, suffixes, options) for name, folders in splits.items()}
    if divisor and any(frame.second for group in frames.values() for frame in group):
        raise InputError("labels hold the instances when there is a divisor: leave the folder of instances out")
    if not divisor and listed.classes.num_thing and all(len(folders) == 2 for folders in splits.values()):
        options.say("no pictures of instances: things become crowds, which nothing is learnt from")
    read = partial(read_instances, listed=listed, divisor=divisor)
    return convert_splits(out, listed.classes, distinct_ids(frames), read, options)


def find_frames(split: str, folders: tuple[str, ...], suffixes: tuple[str, str, str], options: Options) -> list[Frame]:
    """The photos of a split that have labels, by name."""
    photos = without_suffix(by_stem(tree_files(folders[0], "photos"), is_photo), suffixes[0])
    if not photos:
        raise InputError(f"{folders[0]}: 0 photos found for {split}{_named(suffixes[0])}")
    labels, instances = ({}, {}) if len(folders) < 2 else (_pngs(folders[1], "labels", suffixes[1]), {})
    if len(folders) > 2:
        instances = _pngs(folders[2], "instances", suffixes[2])
    labels_by_name, instances_by_name = Partners(labels), Partners(instances)
    frames = []
    for stem, photo in photos.items():
        label = labels_by_name.find(stem)
        if label is None:
            continue
        number = instances_by_name.find(stem)
        if instances and number is None:
            raise InputError(f"{photo}: has labels, but no picture of instances in {folders[2]}{_named(suffixes[2])}")
        frames.append(Frame(id_of(stem), photo, label, photo.name, number))
    if not frames:
        raise InputError(
            f"{folders[1]}: 0 of {len(photos)} photos have labels of the same name{_named(suffixes[1])}; the first "
            f"photo is {next(iter(photos))}, the first label picture {next(iter(labels), 'missing')}"
        )
    if len(photos) > len(frames):
        options.say(f"{folders[0]}: {len(photos) - len(frames)} photos without labels, left out")
    return frames


def _pngs(folder: str, what: str, suffix: str) -> dict[str, File]:
    return without_suffix(by_stem(tree_files(folder, what), lambda name: name.lower().endswith(".png")), suffix)


def _named(suffix: str) -> str:
    return f" (names that end in {suffix!r})" if suffix else ""


def read_instances(frame: Frame, listed: ClassList, divisor: int) -> Instances:
    """The instances of an image; InputError if a file is broken or a value has no class."""
    labels = read_map(frame.annotation).astype(np.int64)
    numbers = np.zeros_like(labels)
    if divisor:
        labels, numbers = labels // divisor, labels % divisor
    elif frame.second is not None:
        numbers = read_map(frame.second).astype(np.int64)
        if numbers.shape != labels.shape:
            raise InputError(
                f"{frame.second}: {numbers.shape[1]} x {numbers.shape[0]} pixels (width x height), but "
                f"{frame.annotation} has {labels.shape[1]} x {labels.shape[0]}"
            )

    def describe(value: int) -> tuple[int, int]:
        label, number = value >> _LABEL_SHIFT, value & (1 << _LABEL_SHIFT) - 1
        if label not in listed.class_of:
            raise InputError(
                f"{frame.annotation}: value {label} has no class; add it to the class list, as a class or to void"
            )
        return listed.class_of[label], int(number == 0)

    return Instances(*number_segments(labels << _LABEL_SHIFT | numbers, describe, listed.classes))
