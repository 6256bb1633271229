"""Converts folders of images with label images, instance images, masks of single objects, or files of polygons."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from seamseg.maps.formats import cvat
from seamseg.maps.idmaps.id_runs import Runs, union_of_runs
from seamseg.maps.images import image_size, open_mask, open_object_mask
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.annotations import mask_runs
from seamseg.maps.prepare.archives import File, read_file, read_map, size_of
from seamseg.maps.prepare.class_file import (
    IGNORED,
    ClassList,
    background_class,
    list_of_names,
    read_class_list,
    with_background,
)
from seamseg.maps.prepare.coco_instances import decode_segmentation, stack_regions
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits, distinct_ids
from seamseg.maps.prepare.pairs import (
    COCO_JSON,
    LABEL_ENDINGS,
    FilesByName,
    Instances,
    by_stem,
    is_image,
    is_label,
    number_objects,
    number_segments,
    tree_files,
    without_suffix,
)
from seamseg.maps.prepare.panoptic import load_json
from seamseg.maps.prepare.writer import SourceFrame, check_size, check_stated_size
from seamseg.utils.errors import InputError
from seamseg.utils.files import decode_text, listed_names
from seamseg.utils.limits import MIB

_FORMS = (LABEL_ENDINGS, (".json",), (".txt",))
"""Extensions of the label images, and of the polygons of labelme and YOLO."""
_ROTATED = ("rotation", "oriented_rectangle")
"""Names of rotated rectangles, in versions of labelme and programs made of it."""
_SPLITS = {"train", "val", "valid", "test"}
"""Names of folders below `images` and `labels` in data sets of YOLO."""
_YOLO_BYTES = 16 * MIB  # of the polygons of an image
_CIRCLE = 64  # corners of a circle
_FILE_BYTES = 256 * MIB  # labelme may store the image with them
_MAX_COORDINATE = 1 << 31  # pixels
_ROUNDING = 0.01  # tools write points at the border slightly outside


def prepare_folders(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path | None = None,
    divisor: int = 0,
    suffixes: tuple[str, str, str] = ("", "", ""),
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert folders of images; docs/how-to/prepare_data.md describes the forms of labels.

    Label images have a class id at each pixel; with a class list of one thing and no stuff but that of id 0, and
    without instance images, the numbers of its objects. Instance images have a number for each object, 0 for a crowd.
    Polygons (labelme, YOLO) and masks of single objects are stored in layers, the smallest in the first; the other
    pixels are as :func:`seamseg.maps.prepare.class_file.with_background` says.

    Without `class_list` the labels of labelme are the classes, in the order of the alphabet, as of a list of names.

    `splits` has by name of the list `(images, labels)` or `(images, labels, instances)`, folders or archives; for a
    folder `SegmentationClass` of Pascal VOC the list of this name beside it selects the images. If `divisor` is not 0,
    label images hold `class * divisor + instance`. `suffixes` end the names of images, labels and instances, as
    `_leftImg8bit`.
    """
    options = options.begin()
    named = _labels_of_labelme(splits) if class_list is None else read_class_list(class_list)
    listed = with_background(named, options.void_background)
    if divisor < 0 or divisor == 1:
        raise InputError(f"`divisor={divisor}`: must be 2 or more")
    for name, folders in splits.items():
        if len(folders) not in (2, 3):
            raise InputError(f"split {name!r}: expected the folders (images, labels) or (images, labels, instances)")
    frames = {name: find_frames(given, suffixes, options.of_split(name), listed) for name, given in splits.items()}
    all_frames = [frame for group in frames.values() for frame in group]
    if divisor and any(frame.second for frame in all_frames):
        raise InputError("with a divisor the labels hold the instances: omit the folder of instances")
    objects = next((frame for frame in all_frames if _has_objects(frame)), None)
    if objects is not None and (divisor or any(frame.second for frame in all_frames)):
        raise InputError(f"{objects.annotation}: holds the objects: omit the divisor, and the folder of instances")
    bare = not divisor and not all(frame.second or _has_objects(frame) for frame in all_frames)
    classes = named.classes
    numbered = bare and classes.num_thing == 1 and not any(classes.original_ids[: classes.num_stuff])
    if bare:
        if numbered:
            options.log(f"{listed.classes.categories[-1]!r} is the only thing: labels are the numbers of its objects")
        elif listed.classes.num_thing:
            options.log("no instance images: things become crowds, which are ignored in training")
    read = partial(read_instances, listed=listed, divisor=divisor, numbered=numbered)
    done = convert_splits(out, listed.classes, distinct_ids(frames), read, options)
    most = max(sum(map(listed.classes.is_thing, image.cat)) for image in done.metadata.images)
    if numbered and len(all_frames) > 1 and most < 2:
        options.log("no image has more than one object: labels of 0 and 1 do not separate objects")
    return done


def _labels_of_labelme(splits: Mapping[str, tuple[str, ...]]) -> ClassList:
    files = [file for folders in splits.values() for file in _ending(_trees(folders)[1], _FORMS[1], "").values()]
    labels: set[str] = set()
    for file in files:
        shapes = load_json(file, _FILE_BYTES).get("shapes")
        for shape in shapes if isinstance(shapes, list) else ():
            labels.add(str(shape.get("label", IGNORED) if isinstance(shape, dict) else IGNORED))
    names = sorted(labels - {IGNORED})
    if not names:
        raise InputError(
            "pass a class list (`classes`): only labels of labelme state the names of their classes"
            f"{COCO_JSON if len(files) == 1 else ''}"
        )
    return list_of_names(dict(enumerate(names)), "labels of labelme")


def find_frames(
    folders: tuple[str, ...], suffixes: tuple[str, str, str], options: ConversionOptions, listed: ClassList
) -> list[SourceFrame]:
    """Return the images of a split that have labels, by name."""
    trees = _trees(folders)
    every = without_suffix(by_stem(trees[0], is_image), suffixes[0])
    if not every:
        raise InputError(f"{folders[0]}: 0 images found for {options.split}{_named(suffixes[0])}")
    own = set(map(_path, every.values()))
    given = {name: file for name, file in trees[1].items() if _path(file) not in own}
    photos = _listed_images(folders, every, options)
    instances = _ending(trees[2], LABEL_ENDINGS, suffixes[2])
    if len(folders) > 2 and not instances:
        raise InputError(f"{folders[2]}: 0 instance images (.png) found for {options.split}{_named(suffixes[2])}")
    forms = [_ending(given, endings, suffixes[1]) for endings in _FORMS]
    frames = _labelled(photos, forms, instances, folders, suffixes) or _object_files(photos, forms[0], listed)
    if not frames:
        first = next(chain(*forms), None) or next(iter(given), "missing")
        raise InputError(
            f"{folders[1]}: 0 of {len(photos)} images have labels with the same name{_named(suffixes[1])}: PNG, TIFF, "
            f"BMP (JPEG changes the values), .json of labelme, .txt of YOLO; the first image is {next(iter(photos))}, "
            f"the first label file {first}{COCO_JSON if not forms[0] and len(forms[1]) == 1 else ''}"
        )
    parts = sorted(_SPLITS & {PurePosixPath(name).parts[0] for name in photos})
    if len(parts) > 1:
        options.log(f"{folders[0]}: {' and '.join(parts)} become one split; give each folder a --split of its own")
    used = [file for frame in frames for file in (frame.image, *frame.annotations)]
    listed_only = " in the list" if len(photos) < len(every) else ""
    options.skip_unused(trees[0], used, f"image without labels{listed_only and ' or not in the list'}", is_image)
    ending = frames[0].annotation.suffix.lower()
    form = next(endings for endings in _FORMS if ending in endings)
    reason = f"label file of no image{listed_only}"
    options.skip_unused(given, used, reason, lambda name: name.lower().endswith(form))
    options.skip_unused(trees[2], used, f"instance image of no image{listed_only}", is_label)
    return frames


def _path(file: File) -> str:
    return os.path.abspath(str(file))


def _trees(folders: tuple[str, ...]) -> list[dict[str, File]]:
    """Return the files of each folder by path; labels inside the folder of images are no images."""
    photos, *others = (tree_files(folder, what) for folder, what in zip(folders, ("images", "labels", "instances")))
    root = os.path.realpath(folders[0])
    for folder, files in zip(folders[1:], others):
        if os.path.realpath(folder).startswith(os.path.join(root, "")):
            inside = set(map(_path, files.values()))
            photos = {name: file for name, file in photos.items() if _path(file) not in inside}
    return [photos, *others, {}]


def _labelled(
    photos: Mapping[str, File],
    forms: Sequence[Mapping[str, File]],
    instances: Mapping[str, File],
    folders: tuple[str, ...],
    suffixes: tuple[str, str, str],
) -> list[SourceFrame]:
    """Return the images with a file of labels, all of the first form that there is."""
    numbers = FilesByName(instances, photos, same_tree=True)
    frames: list[SourceFrame] = []
    for labels in (FilesByName(files, photos, same_tree=True) for files in forms):
        if frames:
            found = {str(frame.image) for frame in frames}
            other = next((path for s, p in photos.items() if str(p) not in found and (path := labels.path_of(s))), None)
            if other is not None:
                text = f"labels in another form than {frames[0].annotation}; keep one form in a folder"
                raise InputError(f"{labels.use(other, other)}: {text}")
            continue
        for stem, photo in photos.items():
            label = labels.find(stem)
            if label is None:
                continue
            number = numbers.find(stem)
            if instances and number is None:
                raise InputError(f"{photo}: has labels, but no instance image in {folders[2]}{_named(suffixes[2])}")
            frames.append(SourceFrame(_id_of_stem(stem), photo, label, photo.name, number))
    return frames


def _id_of_stem(stem: str) -> str:
    return stem.strip("/").replace("/", "_")


def _ending(files: Mapping[str, File], endings: tuple[str, ...], suffix: str) -> dict[str, File]:
    return without_suffix(by_stem(files, lambda name: name.lower().endswith(endings)), suffix)


def _named(suffix: str) -> str:
    return f" (names that end in {suffix!r})" if suffix else ""


def _listed_images(folders: tuple[str, ...], photos: dict[str, File], options: ConversionOptions) -> dict[str, File]:
    """Return the images of the list of a split, if the labels are of Pascal VOC."""
    labels, split = Path(folders[1]).absolute(), options.split
    lists = sorted((labels.parent / cvat.LISTS).glob("[!.]*.txt")) if labels.name == cvat.CLASS_FOLDER else []
    if not lists:
        return photos
    chosen = next((path for path in lists if path.stem == split), None)
    if chosen is None:
        names = ", ".join(path.stem for path in lists)
        options.log(f"{lists[0].parent}: has the lists {names}, none for {split}, which gets all images with labels")
        return photos
    lines = listed_names(read_file(chosen, "list"), chosen, "list")
    found = FilesByName(photos, lines)
    files = [found.get(name, chosen, folders[0]) for name in lines]
    if not files:
        raise InputError(f"{chosen}: lists no image")
    stems = {file: stem for stem, file in photos.items()}
    return {stems[file]: file for file in files}


def _object_files(photos: Mapping[str, File], masks: Mapping[str, File], listed: ClassList) -> list[SourceFrame]:
    photos_by_name = FilesByName(photos, masks, same_tree=True)
    found: dict[str, list[tuple[int, File]]] = {}
    for name, file in masks.items():
        rest = ""
        for end in reversed([k for k, letter in enumerate(name) if letter in "_/"]):
            stem = photos_by_name.path_of(name[:end])
            if stem is None:
                continue
            rest = name[end + 1 :]
            # the class with the longest name that the rest is, or starts with
            names = listed.classes.categories
            fitting = [k for k, n in enumerate(names) if rest == n or rest.startswith((f"{n}_", f"{n}/"))]
            if fitting:
                photos_by_name.use(stem, name[:end])
                found.setdefault(stem, []).append((max(fitting, key=lambda k: len(names[k])), file))
                break
        else:
            if rest:
                raise InputError(
                    f"{file}: {rest!r} after the name of the image does not start with a class of the class list; name "
                    "masks of single objects PHOTO_CLASS_NUMBER.png; of label images, pass the suffix, such as "
                    '`suffixes="" _labels ""`'
                )
    return [
        SourceFrame(
            _id_of_stem(stem),
            photos[stem],
            found[stem][0][1],
            photos[stem].name,
            info=[category for category, _ in found[stem]],
            others=tuple(file for _, file in found[stem][1:]),
        )
        for stem in photos
        if stem in found
    ]


def _has_objects(frame: SourceFrame) -> bool:
    return frame.info is not None or not is_label(frame.annotation.name)


def read_instances(frame: SourceFrame, listed: ClassList, divisor: int, numbered: bool) -> Instances:
    """Read the instances of an image; InputError if a file is invalid or a value has no class."""
    if _has_objects(frame):
        size = size_of(frame.image)
        readers = {".json": _read_labelme, ".txt": _read_yolo}
        read = readers.get(frame.annotation.suffix.lower(), _read_object_files)
        found: Iterable[tuple[Runs, int]] = read(frame, size, listed)
        return stack_regions(found, size, frame, listed.classes)
    labels = read_map(frame.annotation)
    if numbered and frame.second is None:

        def class_of_number(number: int) -> tuple[int, int]:
            """Return the thing, the last class, but for void and the rest."""
            if listed.class_of.get(number) == VOID:
                return VOID, 0
            if number == 0:
                return 0 if listed.classes.num_stuff else VOID, 0
            return listed.classes.num_classes - 1, 0

        return number_segments(labels, class_of_number, listed.classes)
    labels, numbers = labels.astype(np.int64), np.int64(0)
    if divisor:
        numbers = labels % divisor
        labels //= divisor
    elif frame.second is not None:
        numbers = read_map(frame.second)
    if not listed.classes.num_stuff:  # of things only, with a background that is left void
        listed = replace(listed, class_of={0: VOID, **listed.class_of})
    class_of = partial(listed.class_at, source=frame.annotation)
    return number_objects(labels, numbers, class_of, listed.classes)


def _read_object_files(frame: SourceFrame, size: tuple[int, int], listed: ClassList) -> Iterator[tuple[Runs, int]]:
    for category, file in zip(frame.info, frame.annotations):
        mask = open_object_mask(str(file), read_file(file, "mask"))
        check_size(file, mask.shape, frame.image, size)
        inside = mask != 0
        if inside.any() and (mask[inside] != mask.max()).any():
            raise InputError(f"{file}: has more than one value besides 0, but is the mask of one object")
        yield mask_runs(inside), category


def _read_yolo(frame: SourceFrame, size: tuple[int, int], listed: ClassList) -> Iterator[tuple[Runs, int]]:
    text = decode_text(read_file(frame.annotation, "labels", _YOLO_BYTES), frame.annotation, "label file")
    background = background_class(listed.classes)
    for number, line in enumerate(text.splitlines(), 1):
        where, words = f"{frame.annotation}: line {number}", line.split()
        if not words:
            continue
        if len(words) == 5:
            raise InputError(f"{where}: a box, not a polygon (class x y x y x y ...); export labels for segmentation")
        try:
            category, points = int(words[0]), np.array(words[1:], np.float64).reshape(-1, 2)
        except ValueError:
            raise InputError(f"{where}: expected a class id and pairs of numbers, class x y x y x y ...") from None
        if len(points) < 3:
            raise InputError(f"{where}: {len(points)} corners, expected 3 or more")
        if not (np.abs(points - 0.5) <= 0.5 + _ROUNDING).all():
            raise InputError(f"{where}: a coordinate is not from 0 to 1, the share of the image's width or height")
        corners = (points * (size[1], size[0])).ravel().tolist()
        found = listed.class_at(category, where)
        if found == background:
            raise InputError(
                f"{where}: class {category} is the background in the class list; number the classes as in the data set"
            )
        yield decode_segmentation([corners], size, where), found


def _read_labelme(frame: SourceFrame, size: tuple[int, int], listed: ClassList) -> Iterator[tuple[Runs, int]]:
    content = load_json(frame.annotation, _FILE_BYTES)
    groups: dict[tuple[int, Any], list[tuple[str, Any]]] = {}
    try:
        stated = content.get("imageWidth"), content.get("imageHeight")
        check_stated_size(str(frame.annotation), stated, frame.image, size)
        for k, shape in enumerate(content["shapes"]):
            where = f"{frame.annotation}: shape {k + 1}"
            category = listed.class_named(str(shape["label"]), where)
            group = shape.get("group_id")
            # shapes of one group and class are parts of an object
            key = (category, ("shape", k) if group is None else ("group", str(group)))
            groups.setdefault(key, []).append((where, shape))
        # one by one, so that their number is limited where they are stored
        for (category, _), shapes in groups.items():
            yield _labelme_object(shapes, size), category
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{frame.annotation}: not a file of labelme ({type(error).__name__}: {error!s:.200}); expected `shapes` "
            "with `label` and `points`"
        ) from None


def _labelme_object(shapes: Sequence[tuple[str, Any]], size: tuple[int, int]) -> Runs:
    parts: list[Runs] = []
    polygons: list[list[float]] = []
    for where, shape in shapes:
        kind = shape.get("shape_type") or "polygon"
        points = np.array(shape["points"], np.float64).reshape(-1, 2)
        if not (np.abs(points) < _MAX_COORDINATE).all():
            raise InputError(f"{where}: a point is not a pair of finite numbers of pixels")
        if kind == "mask":
            parts.append(_labelme_mask(shape["mask"], points, size, where))
        else:
            polygons.append(_labelme_corners(kind, points, where).ravel().tolist())
    if polygons:
        parts.append(decode_segmentation(polygons, size, shapes[0][0]))
    return parts[0] if len(parts) == 1 else union_of_runs(parts)


def _labelme_corners(kind: str, points: np.ndarray, where: str) -> np.ndarray:
    if (kind == "polygon" and len(points) >= 3) or (kind in _ROTATED and len(points) == 4):
        return points
    if kind == "rectangle" and len(points) == 2:
        (x0, y0), (x1, y1) = points
        return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    if kind == "circle" and len(points) == 2:
        angle = np.arange(_CIRCLE) * (2 * math.pi / _CIRCLE)
        radius = math.dist(points[0], points[1])
        return points[0] + radius * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    raise InputError(
        f"{where}: {kind!r} with {len(points)} points has no area that can be read; remove it, or draw a polygon"
    )


def _labelme_mask(encoded: str, points: np.ndarray, size: tuple[int, int], where: str) -> Runs:
    """Return the pixels of a mask, a PNG for the box whose first corner is the first point."""
    data = base64.b64decode(encoded, validate=True)
    height, width = image_size(where, data)
    if height * width <= size[0] * size[1]:
        # before a rotation by its EXIF tag, which masks are read without
        mask = open_mask(where, data)
        height, width = mask.shape
    left, top = (int(value) for value in points[0])
    if min(left, top) < 0 or top + height > size[0] or left + width > size[1]:
        raise InputError(f"{where}: its mask of {width} x {height} pixels exceeds the image")
    # without a mask of the image, which would take long for many small ones
    x, y = np.nonzero(mask.T)
    pixels = (x + left) * size[0] + y + top
    first = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)
    return pixels[first], np.diff(first, append=len(pixels))
