"""Converts COCO panoptic annotations, a JSON and a folder of PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.images import open_mask
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.archives import File, SourceTree, read_file, size_of
from seamseg.maps.prepare.class_file import ClassList, build_class_list, coco_categories, with_background
from seamseg.maps.prepare.convert import (
    ConversionOptions,
    ConversionResult,
    convert_splits,
    distinct_ids,
    find_splits,
    id_of,
)
from seamseg.maps.prepare.pairs import FilesByName, Instances, is_image, number_segments, tree_files
from seamseg.maps.prepare.writer import SourceFrame, check_stated_size
from seamseg.utils.errors import InputError, describe_error
from seamseg.utils.limits import ANNOTATION_BYTES, parse_json, whole_number

INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of reading the fields of a JSON file with other content."""
COCO_SPLITS = ("train2017", "val2017")
_COLOUR_TYPES = (2, 3, 6)  # of a PNG: RGB, palette, RGBA


@dataclass(frozen=True)
class PanopticSource:
    """A split: images and masks by their name in the JSON, its parsed content, and its name for errors."""

    photos: Mapping[str, File]
    masks: Mapping[str, File]
    content: Mapping[str, Any]
    name: str


def prepare_panoptic(
    out: str | Path, splits: Mapping[str, tuple[str, ...]], options: ConversionOptions = ConversionOptions()
) -> ConversionResult:
    """Convert any data set in the COCO panoptic format.

    The PNG holds ids as `R + 256 G + 65536 B`, or directly if it is grey. Crowds of things stay crowds. Id 0 is void,
    or the class `background` that things only get (:func:`seamseg.maps.prepare.class_file.with_background`).

    `splits` has by name of the list `(folder of images, JSON file, folder of PNG)`; zip files may replace folders.
    """
    options = options.begin()
    sources = {
        name: PanopticSource(tree_files(photos, "images"), tree_files(masks, "masks"), load_json(Path(path)), str(path))
        for name, (photos, path, masks) in splits.items()
    }
    return convert_panoptic(out, sources, options)


def prepare_coco(
    root: str | Path,
    out: str | Path,
    splits: Sequence[str] = COCO_SPLITS,
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert COCO panoptic as downloaded.

    `root` holds `train2017/`, `val2017/` and `annotations/panoptic_{train,val}2017` as `.json` and folders of PNG; each
    folder may be in its zip file. Splits missing in `root` are skipped.
    """
    options, tree = options.begin(), SourceTree(root, ("", "annotations"))

    def find(split: str, _: ConversionOptions) -> PanopticSource | None:
        path = f"annotations/panoptic_{split}.json"
        file = tree.file(path)
        if file is None:
            return None
        masks = tree.files(f"annotations/panoptic_{split}") or tree.files(f"panoptic_{split}")
        return PanopticSource(tree.files(split), masks, load_json(file), str(tree.root / path))

    expected = (
        "annotations/panoptic_val2017.json, annotations/panoptic_val2017/*.png and val2017/*.jpg, "
        f"or their zip files{tree.hint}"
    )
    sources = find_splits(root, splits, dict(zip(COCO_SPLITS, COCO_SPLITS)), find, expected, options)
    for source in sources.values():
        if not source.masks:
            raise InputError(f"{source.name.removesuffix('.json')}: no folder of PNG and no zip file of it{tree.hint}")
    return convert_panoptic(out, sources, options)


def convert_panoptic(
    out: str | Path, sources: Mapping[str, PanopticSource], options: ConversionOptions
) -> ConversionResult:
    """Write the dataset folder of parsed sources, see :func:`prepare_panoptic`."""
    lists = {name: coco_categories(s.content.get("categories"), s.name) for name, s in sources.items()}
    first = next(iter(lists))
    for name, categories in lists.items():
        if categories != lists[first]:
            raise InputError(f"{sources[name].name}: its categories differ from those of {sources[first].name}")
    given = build_class_list(lists[first], [], sources[first].name)
    listed = with_background(given, options.void_background)
    splits = distinct_ids({name: find_frames(source, options.of_split(name)) for name, source in sources.items()})
    read = partial(read_instances, listed=listed, rest=VOID if listed is given else 0)
    return convert_splits(out, listed.classes, splits, read, options)


def load_json(path: File, limit: int = ANNOTATION_BYTES) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes; InputError if the file has other content."""
    try:
        content = parse_json(read_file(path, "annotations", limit))
    except ValueError as error:
        raise InputError(f"{path}: not JSON, or a truncated one: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content


def coco_images(content: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return the images of a COCO file by :func:`id_text`; InputError if two have one id, or it has no annotations."""
    try:
        images = {id_text(image["id"]): {**image, "file_name": str(image["file_name"])} for image in content["images"]}
        len(content["annotations"])
    except INVALID as error:
        raise InputError(
            f"{source}: not a COCO file ({describe_error(error)}); expected `annotations`, and `images` with `id` and "
            "`file_name`"
        ) from None
    if len(images) < len(content["images"]):
        raise InputError(f"{source}: two of its `images` have one id")
    return images


def id_text(value: Any) -> str:
    """Return an id as text, equal for 7, 7.0 and "7"; ValueError if it is neither a whole number nor a text."""
    return value if isinstance(value, str) else str(whole_number(value))


def crowd_flag(record: Mapping[str, Any]) -> int:
    """Return `iscrowd` as 0 or 1; 0 if it is null or missing."""
    return int(whole_number(record.get("iscrowd") or 0) != 0)


def find_frames(source: PanopticSource, options: ConversionOptions) -> list[SourceFrame]:
    """Return the annotated images of a split, by id."""
    images = coco_images(source.content, source.name)
    annotations = source.content["annotations"]
    photos = FilesByName(source.photos, (image["file_name"] for image in images.values()))
    frames, annotated, where = [], set(), source.name
    try:
        masks = FilesByName(source.masks, (annotation["file_name"] for annotation in annotations))
        for k, annotation in enumerate(annotations):
            where, number = f"{source.name}: annotation {k}", id_text(annotation["image_id"])
            if number not in images:
                options.skip("annotation of an image that the JSON does not list", f"image_id {number}")
                continue
            name, stated = images[number]["file_name"], (images[number].get("width"), images[number].get("height"))
            segments = annotation["segments_info"]
            info = [(whole_number(s["id"]), whole_number(s["category_id"]), crowd_flag(s)) for s in segments]
            mask = masks.get(annotation["file_name"], source.name, "its folder")
            photo = photos.get(name, source.name, "its folder")
            annotated.add(number)
            frames.append(SourceFrame(id_of(name), photo, mask, name, info=(info, stated)))
    except INVALID as error:
        raise InputError(f"{where}: {describe_error(error)}; expected `image_id`, `segments_info`, ...") from None
    if not frames:
        raise InputError(
            f"{source.name}: 0 images found: `annotations` " + ("has none of them" if annotations else "is empty")
        )
    used: list[object] = [file for frame in frames for file in (frame.image, frame.annotation)]
    for name in sorted(image["file_name"] for number, image in images.items() if number not in annotated):
        options.skip("image without annotation", name)
        used += [source.photos[path] for path in [photos.path_of(name)] if path is not None]
    options.skip_unused(source.photos, used, "image that the JSON does not list", is_image)
    options.skip_unused(source.masks, used, "PNG that the JSON does not list")
    return sorted(frames, key=lambda frame: frame.id)


def read_instances(frame: SourceFrame, listed: ClassList, rest: int) -> Instances:
    """Read the segments of an image, id 0 as the class `rest`; InputError if PNG and JSON are inconsistent."""
    segments, stated = frame.info
    check_stated_size(f"{frame.file_name} of the JSON", stated, frame.image, size_of(frame.image))
    known = {number: (category, crowd) for number, category, crowd in segments}
    absent = set(known)

    def describe(value: int) -> tuple[int, int]:
        absent.discard(value)
        if value == 0:
            return rest, 0
        if value not in known:
            raise InputError(f"{frame.annotation}: has segment {value}, which is not in the JSON")
        category, crowd = known[value]
        if category not in listed.class_of:
            raise InputError(f"{frame.annotation}: segment {value} has category {category}, which is not in the JSON")
        return listed.class_of[category], crowd

    found = number_segments(read_ids(frame.annotation), describe, listed.classes)
    skipped = tuple(("segment without a pixel", f"{n} of {frame.annotation}") for n in sorted(absent))
    return replace(found, skipped=skipped)


def read_ids(file: File) -> np.ndarray:
    """Read the segment ids of a panoptic PNG, `H x W` int32 or uint32."""
    data = read_file(file, "panoptic PNG")
    if data[:4] == b"\x89PNG" and len(data) > 25 and data[25] not in _COLOUR_TYPES:
        return open_mask(str(file), data)
    return read_id_png(str(file), data)
