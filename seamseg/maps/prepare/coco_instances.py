"""Converts COCO instances (polygons or RLE), with label images for the stuff."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.id_runs import Runs
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.annotations import decode_rle
from seamseg.maps.prepare.archives import read_map, size_of
from seamseg.maps.prepare.class_file import (
    BACKGROUND,
    ClassList,
    background_class,
    bare_name,
    build_class_list,
    coco_categories,
    read_class_list,
    with_background,
)
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits, distinct_ids, id_of
from seamseg.maps.prepare.pairs import FilesByName, Instances, by_stem, is_image, is_label, number_segments, tree_files
from seamseg.maps.prepare.panoptic import INVALID, coco_images, crowd_flag, id_text, load_json
from seamseg.maps.prepare.writer import SourceFrame, check_stated_size
from seamseg.utils.errors import InputError, describe_error
from seamseg.utils.limits import whole_number

Thing = tuple[Runs, int, int]
"""Pixels of an object, class and crowd flag"""
_Stated = tuple[Any, Any]
"""Width and height of an image, as its annotations state them"""


class _Annotation(NamedTuple):
    """An annotation of a COCO file."""

    category: int
    crowd: int
    segmentation: Any
    name: str


_FARTHEST = 16
"""Largest distance of a polygon corner, in multiples of the longer image side."""
_OUTLINE_PIXELS = 1 << 22
"""Length of the polygons of an object: pycocotools takes 40 bytes per pixel."""
_LAYER_PIXELS = 1 << 28
_MAX_LAYERS, _MAX_OBJECTS = 64, (1 << 16) - 1
_MAX_RUNS = 1 << 24
"""Runs of pixels of the objects of an image, 16 bytes each."""


def prepare_instances(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path | None = None,
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert COCO instances, which overlap in layers of the mask, the smallest in the first.

    Label images define the pixels that no object covers; their thing classes become crowds. Without them these pixels
    are as :func:`seamseg.maps.prepare.class_file.with_background` says.

    `splits` has by name of the list `(images, JSON)` or `(images, JSON, labels)`; folders or archives, and a file.
    `class_list` has stuff by the values of the label images, things by the category ids of the JSON; None for the
    categories of the JSON alone, as things but for one named `background`, whose annotations are left out.
    """
    options = options.begin()
    contents = {name: load_json(Path(given[1])) for name, given in splits.items()}
    if class_list is not None:
        listed = read_class_list(class_list)
    else:
        name = next(iter(splits))
        entries = coco_categories(contents[name].get("categories"), splits[name][1])
        rest = [e["id"] for e in entries if bare_name(e["name"]) == BACKGROUND]
        listed = build_class_list([e for e in entries if e["id"] not in rest], [], splits[name][1])
        if any(len(given) > 2 for given in splits.values()):
            raise InputError("label images need a class list that defines their values (`classes`)")
    listed = with_background(listed, options.void_background)
    if class_list is None:
        listed.class_of.update(dict.fromkeys(rest, 0 if listed.classes.num_stuff else VOID))
    frames = {
        name: find_frames(given, contents[name], listed, options.of_split(name)) for name, given in splits.items()
    }
    read = partial(read_instances, listed=listed)
    return convert_splits(out, listed.classes, distinct_ids(frames), read, options)


def find_frames(
    given: tuple[str, ...], content: Mapping[str, Any], listed: ClassList, options: ConversionOptions
) -> list[SourceFrame]:
    """Return the images of a COCO file by id, including those without objects."""
    source = given[1]
    files = tree_files(given[0], "images")
    maps = tree_files(given[2], "labels") if len(given) > 2 else {}
    images = _objects_of(content, source, listed, options)
    photos = FilesByName(files, (name for name, _ in images))
    stems = {name: name.rpartition(".")[0] for name, _ in images}
    labels = FilesByName(by_stem(maps, is_label), stems.values(), same_tree=True) if len(given) > 2 else None
    frames, bare = [], []
    for name, found in sorted(images, key=lambda image: image[0]):
        photo = photos.get(name, source, given[0])
        label = labels.find(stems[name]) if labels is not None else None
        if labels is not None and label is None:
            options.skip("image without a label image", photo)
            bare.append(photo)
            continue
        frames.append(SourceFrame(id_of(name), photo, label or Path(source), name, label, found))
    if not frames:
        raise InputError(f"{source}: 0 images found" + (f" that have a label image in {given[2]}" if bare else ""))
    used = [*bare, *(file for frame in frames for file in (frame.image, frame.annotation))]
    options.skip_unused(files, used, "image that the JSON does not list", is_image)
    options.skip_unused(maps, used, "label image of no image", is_label)
    return frames


def _objects_of(
    content: Mapping[str, Any], source: str, listed: ClassList, options: ConversionOptions
) -> list[tuple[str, tuple[list[_Annotation], _Stated]]]:
    images, rest = coco_images(content, source), background_class(listed.classes)
    objects: dict[str, list[_Annotation]] = {number: [] for number in images}
    annotations = content["annotations"]
    where = source
    try:
        for k, a in enumerate(annotations):
            name = f"annotation {a.get('id', k)!s:.40}"
            where = f"{source}: {name}"
            category, number = whole_number(a["category_id"]), id_text(a["image_id"])
            found = listed.class_of.get(category)
            if found is None or (found not in (VOID, rest) and not listed.classes.is_thing(found)):
                raise InputError(f"{where}: category {category} is not a thing of the class list")
            if found == rest or number not in images:
                reason = "an image that the JSON does not list" if found != rest else "the background"
                options.skip(f"annotation of {reason}", f"{name}, image_id {number}")
                continue
            crowd = crowd_flag(a) if not options.no_crowds else 0
            objects[number].append(_Annotation(category, crowd, a.get("segmentation"), name))
    except INVALID as error:
        raise InputError(f"{where}: {describe_error(error)}; expected `category_id`, `image_id`, `iscrowd`") from None
    if annotations and not any(objects.values()):
        raise InputError(f"{source}: none of its {len(annotations)} annotations is of a category and image of the JSON")
    return [(i["file_name"], (objects[n], (i.get("width"), i.get("height")))) for n, i in images.items()]


def read_instances(frame: SourceFrame, listed: ClassList) -> Instances:
    """Read the instances of an image in as many layers as needed; InputError if a value or a size is invalid."""
    size = size_of(frame.image)
    annotations, stated = frame.info
    check_stated_size(f"{frame.file_name} of the JSON", stated, frame.image, size)
    skipped: list[tuple[str, str]] = []

    def things() -> Iterator[Thing]:
        for a in annotations:
            where, item = f"{frame.image}: an invalid `segmentation` in {a.name}", f"{a.name}, of {frame.image}"
            runs = decode_segmentation(a.segmentation or [], size, where)
            polygons = _polygons(a.segmentation or []) if isinstance(a.segmentation or [], list) else None
            if polygons and any(map(len, polygons)) and all((np.abs(p - 0.5) <= 0.6).all() for p in polygons):
                # some tools round
                skipped.append(("object with coordinates from 0 to 1, not in pixels", item))
            elif not len(runs[0]):
                empty = polygons is not None and not any(map(len, polygons))
                skipped.append((f"object without a {'segmentation' if empty else 'pixel'}", item))
            elif (category := listed.class_of[a.category]) != VOID:
                yield runs, category, a.crowd
            else:
                span, inside = span_of(runs)
                columns[span][inside] = 0

    def describe(value: int) -> tuple[int, int]:
        return (rest, 0) if frame.second is None else (listed.class_at(value, frame.second), 1)

    named = background_class(listed.classes)
    rest = VOID if named is None else named
    labels = np.zeros(size, np.uint8) if frame.second is None else read_map(frame.second)
    below = number_segments(labels, describe, listed.classes)
    del labels
    columns = below.ids.T.ravel()  # void where objects of a void class are
    found = stack_things(things(), size, frame, columns, lambda k: (below.cat[k], below.iscrowd[k]), listed.classes)
    return replace(found, skipped=(*found.skipped, *skipped))


def _polygons(segmentation: list[Any]) -> list[np.ndarray]:
    """Return the corners of polygons, `N x 2` each; ValueError if they are no pairs of numbers.

    COCO has a list of `[x, y, x, y, ...]`. Tools also write pairs, `[[x, y], ...]`, and a polygon outside of a list.
    """
    first = segmentation[0] if segmentation else None
    pairs = len(segmentation) > 2 and all(isinstance(p, list) and len(p) == 2 for p in segmentation)
    if not isinstance(first, list) or (pairs and not isinstance(first[0], list)):
        segmentation = [segmentation]
    polygons = []
    for polygon in segmentation:
        try:
            corners = np.array(polygon, np.float64)
        except (ValueError, TypeError):
            raise ValueError("expected a list of polygons, [[x, y, x, y, ...], ...]") from None
        if corners.ndim > 2 or (corners.ndim == 2 and corners.shape[1] != 2) or corners.size % 2:
            raise ValueError(f"a polygon of {corners.size} numbers, expected pairs: [[x, y, x, y, ...], ...]")
        polygons.append(corners.reshape(-1, 2))
    return polygons


def stack_things(
    things: Iterable[Thing],
    size: tuple[int, int],
    frame: SourceFrame,
    values: np.ndarray,
    describe: Callable[[int], tuple[int, int]],
    classes: Metadata,
) -> Instances:
    """Store objects that may overlap in layers `L x H x W`: each in the first one that is free, singles before crowds.

    Of both the smaller come first. Objects without a pixel are skipped. `values`, of the pixels along the columns, are
    the segments where no object is, read after all objects; 0 is void, others are described as by
    :func:`number_segments`. More than 65535 objects and segments, 64 layers, 256 Mi pixels in all layers, or 16 Mi runs
    are an InputError.
    """
    objects = _within_limits(things, size, frame)
    area = [int(length.sum()) for (_, length), _, _ in objects]
    skipped = tuple(("object without a pixel", f"one of {frame.image}") for pixels in area if not pixels)
    cat, iscrowd = [VOID], [0]
    pixels, allowed = size[0] * size[1], _allowed_layers(size)
    layers = np.zeros((allowed, pixels), np.uint16)  # takes the memory of what is written to
    used = np.zeros(pixels, np.min_scalar_type((1 << allowed) - 1))  # a bit for each layer
    count = 1
    for k in sorted((k for k in range(len(objects)) if area[k]), key=lambda k: (objects[k][2], area[k])):
        runs, category, crowd = objects[k]
        span, inside = span_of(runs)
        taken = int(np.bitwise_or.reduce(used[span][inside]))
        layer = (~taken & taken + 1).bit_length() - 1
        if layer >= allowed:
            raise _overlap(size, frame)
        count = max(count, layer + 1)
        used[span][inside] |= used.dtype.type(1 << layer)
        layers[layer, span][inside] = len(cat)
        cat.append(category)
        iscrowd.append(crowd)
    # stuff in the first layer would hide an object of another layer
    values = np.where(used == 0, values, values.dtype.type(0))
    rest = number_segments(values, lambda value: describe(value) if value else (VOID, 0), classes)
    if len(cat) + len(rest.cat) - 1 > _MAX_OBJECTS:
        raise InputError(f"{frame.annotation}: more than {_MAX_OBJECTS} objects on {frame.image}")
    shown = rest.ids > 0
    layers[0][shown] = rest.ids[shown] + np.uint16(len(cat) - 1)
    ids = layers[:count].reshape(count, size[1], size[0]).transpose(0, 2, 1)
    return Instances(ids, cat + rest.cat[1:], iscrowd + rest.iscrowd[1:], skipped)


def _allowed_layers(size: tuple[int, int]) -> int:
    return max(1, min(_MAX_LAYERS, _LAYER_PIXELS // (size[0] * size[1])))


def _overlap(size: tuple[int, int], frame: SourceFrame) -> InputError:
    return InputError(
        f"{frame.annotation}: the objects of {frame.image} overlap in more than {_allowed_layers(size)} layers of "
        f"{size[1]} x {size[0]} pixels"
    )


def _within_limits(things: Iterable[Thing], size: tuple[int, int], frame: SourceFrame) -> list[Thing]:
    """Return objects that are read one by one, until they exceed the limits of :func:`stack_things`."""
    found: list[Thing] = []
    total = runs = 0
    for thing in things:
        length = thing[0][1]
        found.append(thing)
        total, runs = total + int(length.sum()), runs + len(length)
        if total > _allowed_layers(size) * size[0] * size[1]:
            raise _overlap(size, frame)
        if len(found) > _MAX_OBJECTS or runs > _MAX_RUNS:
            raise InputError(
                f"{frame.annotation}: more than {_MAX_OBJECTS} objects, or {_MAX_RUNS} runs of their pixels, on "
                f"{frame.image}"
            )
    return found


def stack_regions(
    regions: Iterable[tuple[Runs, int]], size: tuple[int, int], frame: SourceFrame, classes: Metadata
) -> Instances:
    """Store regions (pixels and class, 255 for void) of things as :func:`stack_things`, of stuff where no thing is.

    Of overlapping stuff the last region counts. Pixels of no region are void without a stuff class `background`.
    """
    rest = background_class(classes)
    stuff = np.full(size[0] * size[1], 0 if rest is None else rest + 1, np.uint8)  # column by column

    def things() -> Iterator[Thing]:
        for runs, category in regions:
            if classes.is_thing(category):
                yield runs, category, 0
            else:
                span, inside = span_of(runs)
                stuff[span][inside] = (category + 1) % (VOID + 1)

    return stack_things(things(), size, frame, stuff, lambda value: (value - 1, 0), classes)


def span_of(runs: Runs) -> tuple[slice, np.ndarray]:
    """Return the pixels from the first to the last run, counted along the columns, and whether each is in a run."""
    edges = np.stack((runs[0], runs[0] + runs[1]), axis=1).ravel()
    if not len(edges):
        return slice(0), np.zeros(0, bool)
    return slice(edges[0], edges[-1]), np.repeat(np.arange(len(edges) - 1) % 2 == 0, np.diff(edges))


def decode_segmentation(segmentation: Any, size: tuple[int, int], where: str) -> Runs:
    """Decode polygons or (compressed) RLE for an image of `(height, width)`; InputError, after `where`, if invalid."""
    height, width = size
    try:
        if not isinstance(segmentation, list):
            if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
                raise ValueError("expected a list of polygons, or an object with `size` and `counts`")
            if list(segmentation["size"]) != list(size):
                raise ValueError(
                    f"its `size` is {segmentation['size']}, but the image has {list(size)} (height, width)"
                )
            return decode_rle(segmentation["counts"], height * width)
        polygons = [polygon for polygon in _polygons(segmentation) if len(polygon) >= 3]
        # pycocotools samples edges at a fifth of a pixel, and writes out of bounds beyond 2^31 samples
        farthest, length = _FARTHEST * max(height, width), 0.0
        for polygon in polygons:
            if not (np.abs(polygon) <= farthest).all():
                raise ValueError(f"a corner is more than {farthest} pixels away")
            length += np.abs(polygon - np.roll(polygon, 1, axis=0)).max(axis=1).sum()
        if length > _OUTLINE_PIXELS:
            raise ValueError(f"its outline is longer than {_OUTLINE_PIXELS} pixels")
        masks = [coco_mask.frPyObjects([polygon.ravel().tolist()], height, width)[0] for polygon in polygons]
        return decode_rle(coco_mask.merge(masks)["counts"] if masks else [], height * width)
    except Exception as error:  # pycocotools raises plain Exception
        raise InputError(f"{where}: {error}") from None
