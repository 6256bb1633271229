"""Converts Mapillary Vistas 1.x and 2.0, unpacked or as zip file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seamseg.maps.formats.metadata import Metadata, parse_colour
from seamseg.maps.formats.vistas import GROUP_SUFFIX, INSTANCES_PER_LABEL, is_group
from seamseg.maps.images import open_mask
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.archives import File, SourceTree, read_file
from seamseg.maps.prepare.class_file import ordered_classes
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits, find_splits
from seamseg.maps.prepare.pairs import Instances, by_stem, is_image, number_segments
from seamseg.maps.prepare.writer import SourceFrame
from seamseg.utils.errors import InputError
from seamseg.utils.limits import CONFIG_BYTES, parse_json

SPLITS = ("training", "validation")
CONFIGS = {"1.2": ("config_v1.2.json", "config.json"), "2.0": ("config_v2.0.json",)}
"""Names of the label file, by version of the data set."""


@dataclass(frozen=True)
class VistasLabels:
    """The labels of `config.json`: the classes, and by label its class (255 for void) and whether it is a group."""

    classes: Metadata
    class_of: list[int]
    is_group: list[bool]


def prepare_vistas(
    root: str | Path,
    out: str | Path,
    version: str | None = None,
    splits: Sequence[str] = SPLITS,
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert Mapillary Vistas: `root` holds `config.json`, `training/` and `validation/`, or their zip file.

    The instance images hold `label * 256 + instance`. Labels with `"instances": true` are things; those with
    `"evaluate": false` become void, except groups, which become crowds (:func:`read_labels`). `version` is `1.2` or
    `2.0`; None for the available one, 1.2 if both are. Splits missing in `root` are skipped.
    """
    options, tree = options.begin(), SourceTree(root)
    version, config = _find_config(tree, version, options)
    labels = read_labels(config)
    first = "".join(splits[:1])
    expected = f"{first}/images/*.jpg and {first}/instances/*.png or {first}/v{version}/instances/*.png{tree.hint}"
    find = partial(find_frames, tree, version)
    found = find_splits(root, splits, dict(zip(SPLITS, SPLITS)), find, expected, options)
    return convert_splits(out, labels.classes, found, partial(read_instances, labels=labels), options)


def _find_config(tree: SourceTree, version: str | None, options: ConversionOptions) -> tuple[str, File]:
    if version is not None and version not in CONFIGS:
        raise InputError(f"there is no Vistas version {version!r}; choose among {', '.join(CONFIGS)}")
    present = {v: tree.file(name) for v, names in CONFIGS.items() for name in reversed(names) if tree.file(name)}
    wanted = version or next(iter(present), None)
    config = present.get(wanted) if wanted else None
    if wanted is None or config is None:
        names = CONFIGS[version] if version else [name for names in CONFIGS.values() for name in names]
        raise InputError(f"{tree.root}: no {' or '.join(names)}; is this the root of Mapillary Vistas?{tree.hint}")
    if version is None and len(present) > 1:
        options.log(f"{tree.root}: labels of versions {' and '.join(present)}; using {wanted}, as none is named")
    return wanted, config


def read_labels(config: File) -> VistasLabels:
    """Read the labels of a `config.json`.

    A label whose name ends in "group" is a crowd: of its own class if it is evaluated. If it is not, as in version 2.0,
    it is a crowd of the only thing class that it can group: `object--support--pole-group` of `object--support--pole`,
    `human--person--person-group` of the only other label below `human--person`. An ambiguous group, as
    `object--vehicle--vehicle-group`, is void: predictions on it are ignored.
    """
    try:
        labels = parse_json(read_file(config, "labels of Vistas", CONFIG_BYTES))["labels"]
        entries = [_entry(k, label) for k, label in enumerate(labels)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{config}: not the labels of Mapillary Vistas ({type(error).__name__}: {error})") from None
    evaluated = [e for e in entries if e["evaluate"]]
    if not 0 < len(evaluated) <= VOID or len(entries) > INSTANCES_PER_LABEL:
        raise InputError(f"{config}: {len(entries)} labels, {len(evaluated)} of them evaluated; expected 1 to {VOID}")
    classes, class_of = ordered_classes(evaluated)
    things = {e["name"]: class_of[e["id"]] for e in evaluated if e["thing"]}
    return VistasLabels(
        classes,
        [class_of[e["id"]] if e["evaluate"] else _class_of_group(e["name"], things) for e in entries],
        [is_group(e["name"]) for e in entries],
    )


def _class_of_group(name: str, things: dict[str, int]) -> int:
    """Return the class that a label without evaluation is a crowd of; 255 if it is not a group or is ambiguous."""
    if not name.endswith(GROUP_SUFFIX):
        return VOID
    single = name.removesuffix(GROUP_SUFFIX)
    if single in things:
        return things[single]
    parent, _, last = single.rpartition("--")
    below = [thing for thing in things if thing.rpartition("--")[0] == parent and not is_group(thing)]
    return things[below[0]] if parent and parent.rpartition("--")[2] == last and len(below) == 1 else VOID


def _entry(number: int, label: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": number,
        "name": str(label["name"]),
        "thing": bool(label["instances"]),
        "evaluate": bool(label["evaluate"]),
        "color": parse_colour(label["color"]),
    }


def find_frames(tree: SourceTree, version: str, split: str, options: ConversionOptions) -> list[SourceFrame]:
    """Return the annotated images of a split, by name; InputError if an annotation has no image."""
    folder = f"{split}/v{version}/instances"
    annotations = tree.files(folder)
    if not annotations and version == "1.2":
        folder = f"{split}/instances"
        annotations = tree.files(folder)
    truth = by_stem(annotations, lambda name: name.lower().endswith(".png"))
    photos = by_stem(tree.files(f"{split}/images"), is_image)
    lost = [stem for stem in truth if stem not in photos]
    if lost:
        lacking = f"{len(lost)} of {len(truth)} annotations of {split} lack their image"
        raise InputError(f"{tree.root / split / 'images' / lost[0]}.jpg: no such image; {lacking}{tree.hint}")
    frames = [SourceFrame(stem, photos[stem], truth[stem], photos[stem].name) for stem in truth]
    used = [file for frame in frames for file in (frame.image, frame.annotation)]
    options.skip_unused(tree.files(f"{split}/images"), used, f"image without a PNG in {folder}", is_image)
    options.skip_unused(annotations, used, "not a PNG of instances")
    return frames


def read_instances(frame: SourceFrame, labels: VistasLabels) -> Instances:
    """Read the instances of an image of `instances/`, of 16 bits per pixel."""
    data = read_file(frame.annotation, "instances of Vistas")
    values = open_mask(str(frame.annotation), data)
    if values.max() < INSTANCES_PER_LABEL and (data[:4] != b"\x89PNG" or data[24] != 16):
        raise InputError(f"{frame.annotation}: not 16 bits per pixel; is it from labels/ instead of instances/?")
    highest = int(values.max()) // INSTANCES_PER_LABEL
    if highest >= len(labels.class_of):
        raise InputError(
            f"{frame.annotation}: label {highest}, but the config has labels 0 to {len(labels.class_of) - 1}"
        )

    def describe(value: int) -> tuple[int, int]:
        label = value // INSTANCES_PER_LABEL
        return labels.class_of[label], int(labels.is_group[label])

    return number_segments(values, describe, labels.classes)
