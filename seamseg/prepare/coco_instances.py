"""Converts COCO instances (polygons or RLE), with label images for the stuff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import VOID
from seamseg.prepare.archives import photo_size, read_map
from seamseg.prepare.class_file import ClassList, build_class_list, coco_categories, read_class_list
from seamseg.prepare.convert import DEFAULTS, ConversionOptions, ConversionResult, convert_splits, distinct_ids, id_of
from seamseg.prepare.pairs import FilesByName, by_stem, number_segments, tree_files
from seamseg.prepare.panoptic import load_json
from seamseg.prepare.writer import Instances, SourceFrame
from seamseg.utils.errors import InputError, option

Mask = tuple[np.ndarray, tuple[slice, slice], int, int]
"""Mask of an object at the size of the image, the box of its pixels, class and crowd flag"""

_FARTHEST = 16
"""Largest distance of a polygon corner, in multiples of the longer image side."""


def prepare_instances(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path | None = None,
    options: ConversionOptions = DEFAULTS,
) -> ConversionResult:
    """Convert COCO instances.

    Overlapping objects are stored in layers of the mask, the smallest in the first. Label images define the pixels that
    no object covers; their thing classes become crowds. Without label images these pixels are void.

    Parameters
    ----------
    out : the dataset folder
    splits : by name of the list `(photos, JSON)` or `(photos, JSON, labels)`; folders or archives, and a file
    class_list : stuff by the values of the label images, things by the category ids of the JSON; None for the
        categories of the JSON alone, as things
    options : of the conversion

    Raises
    ------
    InputError
        if a file is missing or invalid, or a category or value has no class
    """
    contents = {name: load_json(Path(given[1])) for name, given in splits.items()}
    if class_list is not None:
        listed = read_class_list(class_list)
    else:
        name = next(iter(splits))
        listed = build_class_list(
            coco_categories(contents[name].get("categories"), splits[name][1]), [], splits[name][1]
        )
        if any(len(given) > 2 for given in splits.values()):
            raise InputError(f"label images need a class list that defines their values ({option('classes')})")
    frames = {name: find_frames(given, contents[name], listed, options) for name, given in splits.items()}
    read = partial(read_instances, listed=listed)
    return convert_splits(out, listed.classes, distinct_ids(frames), read, options)


def find_frames(
    given: tuple[str, ...], content: Mapping[str, Any], listed: ClassList, options: ConversionOptions
) -> list[SourceFrame]:
    """Return the images of a COCO file by id, including those without objects."""
    source = given[1]
    photos = FilesByName(tree_files(given[0], "photos"))
    labels = None
    if len(given) > 2:
        labels = FilesByName(by_stem(tree_files(given[2], "labels"), lambda n: n.lower().endswith(".png")))
    try:
        objects: dict[Any, list[tuple[int, int, Any]]] = {image["id"]: [] for image in content["images"]}
        for a in content["annotations"]:
            category = int(a["category_id"])
            if not listed.classes.is_thing(listed.class_of.get(category, VOID)):
                raise InputError(
                    f"{source}: annotation {a['id']}: category {category} is not a thing of the class list"
                )
            objects[a["image_id"]].append((category, int(a.get("iscrowd", 0)), a["segmentation"]))
        images = [(str(image["file_name"]), objects[image["id"]]) for image in content["images"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{source}: not COCO instances ({type(error).__name__}: {error}); expected `images`, `categories` and "
            "`annotations` with `segmentation`"
        ) from None
    frames, bare = [], 0
    for name, found in sorted(images, key=lambda image: image[0]):
        photo = photos.find(name)
        if photo is None:
            raise InputError(f"{source}: lists {name!r}, but it is not among the {len(photos)} photos in {given[0]}")
        label = labels.find(name.rpartition(".")[0]) if labels is not None else None
        if labels is not None and label is None:
            bare += 1
            continue
        frames.append(SourceFrame(id_of(name), photo, label or Path(source), name, label, found))
    if not frames:
        raise InputError(f"{source}: 0 images found" + (f" that have a label image in {given[2]}" if bare else ""))
    if bare:
        options.log(f"{source}: {bare} images without a label image in {given[2]}, skipped")
    return frames


def read_instances(frame: SourceFrame, listed: ClassList) -> Instances:
    """Read the instances of an image in as many layers as needed; InputError if a value or a size is invalid."""
    height, width = photo_size(frame.photo)
    masks = [(*decode_segmentation(s, height, width, frame), listed.class_of[c], crowd) for c, crowd, s in frame.info]
    background = None
    if frame.second is not None:
        background = _background(frame, listed.classes, listed.class_of)
        ids = background[0]
        if ids.shape != (height, width):
            raise InputError(
                f"{frame.second}: {ids.shape[1]} x {ids.shape[0]} pixels (width x height), but the photo "
                f"{frame.photo} has {width} x {height}"
            )
    return stack_masks(masks, (height, width), background)


def stack_masks(
    masks: Sequence[Mask], size: tuple[int, int], background: tuple[np.ndarray, list[int], list[int]] | None = None
) -> Instances:
    """Store objects in as many layers as needed, the smallest in the first.

    Parameters
    ----------
    masks : of the objects; empty ones are omitted
    size : `(height, width)` of the image
    background : ids, class and crowd flag by id, for the pixels that no object covers
    """
    masks = sorted((m for m in masks if m[0].any()), key=lambda m: (m[3], int(m[0].sum())))
    layers: list[np.ndarray] = [np.zeros(size, dtype=np.int32)]
    cat, iscrowd = [VOID], [0]
    for mask, box, category, crowd in masks:
        part = mask[box]
        free = next((layer for layer in layers if not (layer[box] * part).any()), None)
        if free is None:
            free = np.zeros(size, dtype=np.int32)
            layers.append(free)
        free[box][part] = len(cat)
        cat.append(category)
        iscrowd.append(crowd)
    if background is not None:
        ids, more, crowds = background
        # stuff in the first layer would hide an object of another layer
        bare = ~np.any(layers, axis=0) & (ids > 0)
        layers[0][bare] = ids[bare].astype(np.int32) + len(cat) - 1
        cat += more[1:]
        iscrowd += crowds[1:]
    return Instances(*_compact(np.stack(layers), cat, iscrowd))


def _background(
    frame: SourceFrame, classes: Metadata, class_of: Mapping[int, int]
) -> tuple[np.ndarray, list[int], list[int]]:
    assert frame.second is not None

    def describe(value: int) -> tuple[int, int]:
        if value not in class_of:
            raise InputError(
                f"{frame.second}: value {value} has no class; add it to the class list, as a class or to void"
            )
        return class_of[value], 1

    return number_segments(read_map(frame.second), describe, classes)


def _compact(layers: np.ndarray, cat: list[int], iscrowd: list[int]) -> tuple[np.ndarray, list[int], list[int]]:
    """Remove ids without pixels."""
    present = np.bincount(layers.ravel(), minlength=len(cat)) > 0
    present[0] = True
    new_id = np.cumsum(present) - 1
    kept = np.flatnonzero(present).tolist()
    return new_id[layers].astype(np.uint16), [cat[k] for k in kept], [iscrowd[k] for k in kept]


def decode_segmentation(
    segmentation: Any, height: int, width: int, frame: SourceFrame
) -> tuple[np.ndarray, tuple[slice, slice]]:
    """Decode polygons, RLE or compressed RLE to a mask and its box; InputError if they are invalid."""
    try:
        if isinstance(segmentation, list):
            usable = [polygon for polygon in segmentation if len(polygon) >= 6]
            # pycocotools samples edges at a fifth of a pixel, and writes out of bounds beyond 2^31 samples
            farthest = _FARTHEST * max(height, width)
            if not all(-farthest <= value <= farthest for polygon in usable for value in polygon):
                raise ValueError(f"a corner is more than {farthest} pixels away")
            rle = coco_mask.merge(coco_mask.frPyObjects(usable, height, width)) if usable else None
        elif isinstance(segmentation["counts"], list):
            rle = coco_mask.frPyObjects(segmentation, height, width)
        else:
            rle = segmentation
        if rle is None:
            return np.zeros((height, width), dtype=bool), (slice(0, 0), slice(0, 0))
        if tuple(rle["size"]) != (height, width):
            raise ValueError(f"its size is {rle['size']}, but the photo is {width} x {height} (width x height)")
        x, y, w, h = (int(v) for v in coco_mask.toBbox(rle))
        return coco_mask.decode(rle).astype(bool), (slice(y, y + h), slice(x, x + w))
    except Exception as error:  # pycocotools raises plain Exception
        raise InputError(f"{frame.photo}: an invalid `segmentation` in its annotations: {error}") from None
