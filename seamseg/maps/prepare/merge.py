"""Merges dataset folders, with a mapping of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.archives import read_map
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits
from seamseg.maps.prepare.pairs import Instances, number_segments
from seamseg.maps.prepare.writer import SourceFrame
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.files import read_json
from seamseg.utils.limits import CONFIG_BYTES


@dataclass(frozen=True)
class MergeRules:
    """How the classes and splits of the parts are merged.

    `classes` has the name in the merged set (None for void) by `name` or `FOLDER/name`; others keep their name. `stuff`
    and `things` are merged classes that become this kind, whatever they are in the parts. `splits` has the name in the
    merged set by name of a list.
    """

    classes: Mapping[str, str | None] = field(default_factory=dict)
    stuff: frozenset[str] = frozenset()
    things: frozenset[str] = frozenset()
    splits: Mapping[str, str] = field(default_factory=dict)


def merge_datasets(
    parts: Sequence[str | Path],
    out: str | Path,
    rules: MergeRules = MergeRules(),
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Merge two or more dataset folders into another folder.

    Classes with the same name become one. A thing class that becomes stuff loses its instances; a stuff class that
    becomes a thing is a crowd. Lists with the same name are concatenated. If a part has an image id of an earlier part,
    all its ids are prefixed by the name of its folder. A rule that matches nothing, or a class that is stuff in one
    part and a thing in another, is an InputError.
    """
    if any(Path(out).resolve() == Path(part).resolve() for part in parts):
        raise InputError(f"{out}: is one of the parts; choose another output folder")
    options, folders = options.begin(), [DatasetFolder(part) for part in parts]
    for folder in folders:
        if not folder.splits:
            raise InputError(f"{folder.root / 'lst'}: no list of images")
    _check_rules(folders, rules)
    classes = merged_classes(folders, rules)
    taken: set[str] = set()
    splits: dict[str, list[SourceFrame]] = {}
    index: dict[str | None, int] = {name: k for k, name in enumerate(classes.categories)}
    for number, folder in enumerate(folders, start=1):
        ids = {image.id for image in folder.metadata.images}
        choices = ("", f"{_name(folder)}_", f"{_name(folder)}{number}_")
        prefix = next(p for p in choices if p == choices[-1] or not {p + i for i in ids} & taken)
        taken |= {prefix + i for i in ids}
        # the merged class by class of the part
        table = [index.get(_new_name(folder, name, rules), VOID) for name in folder.metadata.categories]
        for split in folder.splits:
            frames = splits.setdefault(rules.splits.get(split, split), [])
            for image in folder.split(split):
                photo, (base, *layers) = folder.image_path(image.id), folder.mask_paths(image.id)
                cat = [VOID if c == VOID else table[c] for c in image.cat]
                info = cat, image.iscrowd, [folder.metadata.is_thing(c) for c in image.cat]
                frames.append(SourceFrame(prefix + image.id, photo, base, photo.name, None, info, tuple(layers)))
    for folder in folders:
        listed = {image.id for split in folder.splits for image in folder.split(split)}
        for image in folder.metadata.images:
            if image.id not in listed:
                options.of_split(next(iter(splits))).skip(f"image of {folder.root} that is in no list", image.id)
    # renamed lists of one part may share images, for example `train` and `trainval`
    unique = {name: list({frame.id: frame for frame in frames}.values()) for name, frames in splits.items()}
    return convert_splits(out, classes, unique, partial(read_instances, classes=classes), options)


def read_rules(path: str | Path) -> MergeRules:
    """Read rules from a JSON file.

    Either the class mapping alone, `{"car": "vehicle", "vistas/object--bench": null}`, or an object with any of
    `classes` (such a mapping), `stuff`, `things` (lists of merged names) and `splits` (a mapping).
    """
    path = Path(path)
    content = read_json(path, "class mapping", CONFIG_BYTES)
    kinds = {"classes": dict, "splits": dict, "stuff": list, "things": list}
    try:
        if not any(isinstance(content.get(key), (dict, list)) for key in kinds):
            content = {"classes": content}
        classes, splits, stuff, things = (content.pop(key, kind()) for key, kind in kinds.items())
        if not (isinstance(stuff, list) and isinstance(things, list)):
            raise TypeError("`stuff` and `things` are lists of names")
        names = [*stuff, *things, *splits.values(), *(name for name in classes.values() if name is not None)]
        if content or not all(isinstance(name, str) for name in names):
            raise ValueError(f"unexpected {', '.join(content) or 'value'}")
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a class mapping ({error}); expected {{'car': 'vehicle'}}, or {{'classes': {{...}}, "
            "'splits': {...}, 'stuff': [...], 'things': [...]}"
        ) from None
    return MergeRules(classes, frozenset(stuff), frozenset(things), splits)


def merged_classes(folders: Sequence[DatasetFolder], rules: MergeRules) -> Metadata:
    """Return the merged classes: stuff first, else in order; colours and ids of the first part that has them."""
    entries: dict[str, dict[str, Any]] = {}
    for folder in folders:
        m = folder.metadata
        for k, name in enumerate(m.categories):
            new = _new_name(folder, name, rules)
            if new is None:
                continue
            thing = new in rules.things or (m.is_thing(k) and new not in rules.stuff)
            entry = entries.setdefault(
                new,
                {"thing": thing, "color": m.palette[k], "id": m.original_ids[k], "of": f"{name!r} of {folder.root}"},
            )
            if entry["thing"] != thing:
                kinds = ("a thing", "stuff") if entry["thing"] else ("stuff", "a thing")
                raise InputError(
                    f"class {new!r} is {kinds[0]} as {entry['of']}, but {kinds[1]} as {name!r} of {folder.root}; "
                    "list it in `stuff` or `things` of the mapping, or map one of them to another name"
                )
    if not entries:
        raise InputError("the mapping maps every class to void")
    if len(entries) > VOID:
        raise InputError(f"{len(entries)} classes in all, more than {VOID}; map some to one name or to null")
    ordered = sorted(entries.items(), key=lambda item: item[1]["thing"])
    ids, taken = [], {entry["id"] for _, entry in ordered}
    for _, entry in ordered:
        # ids of several parts may clash: the first keeps its id
        new_id = entry["id"] if entry["id"] not in ids else next(i for i in range(len(taken) + VOID) if i not in taken)
        ids.append(new_id)
        taken.add(new_id)
    num_thing = sum(entry["thing"] for _, entry in ordered)
    colours = [entry["color"] for _, entry in ordered]
    return Metadata(len(ordered) - num_thing, num_thing, [name for name, _ in ordered], colours, ids)


def _new_name(folder: DatasetFolder, name: str, rules: MergeRules) -> str | None:
    for key in (f"{_name(folder)}/{name}", name):
        if key in rules.classes:
            return rules.classes[key]
    return name


def _check_rules(folders: Sequence[DatasetFolder], rules: MergeRules) -> None:
    names = {name for folder in folders for name in folder.metadata.categories}
    of_folder = {f"{_name(folder)}/{name}" for folder in folders for name in folder.metadata.categories}
    new_names = [_new_name(folder, name, rules) for folder in folders for name in folder.metadata.categories]
    made = {name for name in new_names if name is not None}
    splits = {split for folder in folders for split in folder.splits}
    no_part = "which is in no part (FOLDER/NAME selects the class of one part)"
    for given, known, where, why in (
        (rules.classes, names | of_folder, "the mapping has class", no_part),
        (
            sorted(rules.stuff | rules.things),
            made,
            "`stuff` or `things` of the mapping has class",
            "which is not a merged class",
        ),
        (rules.splits, splits, "`splits` of the mapping has", "which is in no part"),
    ):
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise InputError(f"{where} {unknown!r}, {why}{did_you_mean(unknown, known)}")
    both = sorted(rules.stuff & rules.things)
    if both:
        raise InputError(f"class {both[0]!r} is in both `stuff` and `things` of the mapping")


def _name(folder: DatasetFolder) -> str:
    return folder.root.resolve().name


def read_instances(frame: SourceFrame, classes: Metadata) -> Instances:
    """Read the instances of an image with merged classes; InputError if the mask is invalid or an id has no class."""
    cat, iscrowd, was_thing = frame.info
    masks = [read_map(path) for path in frame.annotations]
    if any(mask.shape != masks[0].shape for mask in masks):
        raise InputError(f"{frame.annotation}: its layers have different sizes")

    def describe(value: int) -> tuple[int, int]:
        if value >= len(cat):
            raise InputError(f"{frame.annotation}: instance id {value}, but metadata.bin lists ids 0 to {len(cat) - 1}")
        return cat[value], int(iscrowd[value] or not was_thing[value])

    return number_segments(np.stack(masks), describe, classes)
