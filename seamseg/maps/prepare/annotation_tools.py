"""Converts exports of annotation tools: CVAT's "Segmentation mask 1.1", and tasks of Label Studio.

Neither tool knows which labels are things. A class list defines the classes by their names; `classes.json` beside the
annotations is one, which `seamseg predict` writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from seamseg.maps.formats import cvat, label_studio
from seamseg.maps.idmaps.id_runs import Runs
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.annotations import mask_runs
from seamseg.maps.prepare.archives import File, read_file, size_of
from seamseg.maps.prepare.class_file import ClassList, parse_class_list, read_class_list, with_background
from seamseg.maps.prepare.coco_instances import decode_segmentation, stack_regions
from seamseg.maps.prepare.convert import ConversionOptions, ConversionResult, convert_splits, distinct_ids, id_of
from seamseg.maps.prepare.pairs import FilesByName, Instances, by_stem, is_image, number_objects, spellings, tree_files
from seamseg.maps.prepare.panoptic import read_ids
from seamseg.maps.prepare.writer import SourceFrame, check_stated_size
from seamseg.utils.errors import InputError
from seamseg.utils.files import decode_text, listed_names
from seamseg.utils.limits import ANNOTATION_BYTES, CONFIG_BYTES, parse_json

CLASSES = "classes.json"
_BARE = "image without annotation"
_FURTHER = "annotation of a task besides the one that counts: the ground truth, else the last one with regions"
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-")
"""Start of the names of files that were uploaded to Label Studio."""


def prepare_cvat(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path | None = None,
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert exports "Segmentation mask 1.1" of CVAT.

    Pixels of things without an object are a crowd; the label `background` is void unless the class list has it, or has
    things only (:func:`seamseg.maps.prepare.class_file.with_background`).

    `splits` has by name of the list `(images, export)`, folders or archives; if an export has several lists, that of
    this name is used. `class_list`: see :func:`seamseg.maps.prepare.class_file.read_class_list`; None for
    `classes.json` in the first export.
    """
    exports: dict[str, dict[str, File]] = {}
    for split, given in splits.items():
        files = tree_files(given[1], "export of CVAT")
        found = min((name for name in files if PurePosixPath(name).name == cvat.LABELMAP), key=len, default=None)
        if found is None:
            raise InputError(f"{given[1]}: not an export 'Segmentation mask 1.1' of CVAT: it has no {cvat.LABELMAP}")
        prefix = found.removesuffix(cvat.LABELMAP)
        exports[split] = {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}
    return _prepare(out, splits, exports, class_list, options, _cvat_frames, read_cvat)


def prepare_label_studio(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    class_list: str | Path | None = None,
    options: ConversionOptions = ConversionOptions(),
) -> ConversionResult:
    """Convert tasks of Label Studio: brush regions and polygons, which overlap in layers of the mask.

    Of the annotations of a task that were not cancelled, that of the ground truth counts, else the last one with
    regions; without annotations the last prediction. Stuff gets the pixels that no thing covers; pixels without a
    region are of the stuff class `background` if there is one, else void.

    `splits` has by name of the list `(images, tasks)`; tasks are a JSON file, or a folder or archive of them.
    """
    files: dict[str, dict[str, File]] = {}
    for split, given in splits.items():
        path = Path(given[1])
        if path.is_file() and path.suffix.lower() == ".json":
            beside = path.with_name(CLASSES)
            files[split] = {path.name: path, **({CLASSES: beside} if beside.is_file() else {})}
        else:
            found = tree_files(path, "tasks of Label Studio")
            files[split] = {name: file for name, file in found.items() if name.lower().endswith(".json")}
    return _prepare(out, splits, files, class_list, options, _label_studio_frames, read_label_studio)


def _prepare(
    out: str | Path,
    splits: Mapping[str, tuple[str, ...]],
    files: Mapping[str, Mapping[str, File]],
    class_list: str | Path | None,
    options: ConversionOptions,
    find: Callable[[tuple[str, ...], Mapping[str, File], ClassList, ConversionOptions], list[SourceFrame]],
    read: Callable[..., Instances],
) -> ConversionResult:
    """Convert the splits of a tool, whose annotations are `files`, a class list among them unless one is given."""
    options = options.begin()
    if class_list is not None:
        given = read_class_list(class_list)
    else:
        first = next(iter(splits))
        file = files[first].get(CLASSES)
        if file is None:
            raise InputError(
                f"{splits[first][1]}: does not say which labels are things, and has no {CLASSES}: pass a class list "
                "with the names of its labels (`classes`)"
            )
        given = parse_class_list(read_file(file, "class list", CONFIG_BYTES), str(file))
    listed = with_background(given, options.void_background)
    frames = {name: find(split, files[name], listed, options.of_split(name)) for name, split in splits.items()}
    return convert_splits(out, listed.classes, distinct_ids(frames), partial(read, listed=listed), options)


def _image_files(folder: str) -> dict[str, File]:
    """Return the files of a folder of images, or of an export of CVAT with its images."""
    masks = (f"{cvat.CLASS_FOLDER}/", f"{cvat.OBJECT_FOLDER}/")
    return {name: file for name, file in tree_files(folder, "images").items() if not any(m in name for m in masks)}


def _cvat_frames(
    given: tuple[str, ...], files: Mapping[str, File], listed: ClassList, options: ConversionOptions
) -> list[SourceFrame]:
    file = files[cvat.LABELMAP]
    colors = cvat.parse_labelmap(decode_text(read_file(file, "labelmap", CONFIG_BYTES), file, "labelmap"), str(file))
    class_of = {}
    for number, (word, color) in enumerate(colors.items()):
        # of the label `Background`, which a user may add, the class list decides
        name = cvat.BACKGROUND if word.lower() == cvat.BACKGROUND and word not in listed.classes.categories else word
        void = name == cvat.BACKGROUND and name not in listed.classes.categories
        # images of one channel hold the number of the label
        class_of[cvat.code_of(color)] = class_of[-1 - number] = VOID if void else listed.class_named(name, file)
    lists = {name: file for name, file in files.items() if name.startswith(f"{cvat.LISTS}/") and name.endswith(".txt")}
    chosen = lists.get(f"{cvat.LISTS}/{options.split}.txt") or (next(iter(lists.values())) if len(lists) == 1 else None)
    if chosen is None:
        names = ", ".join(map(repr, lists)) or "no list"
        raise InputError(f"{given[1]}: has {names}, none for {options.split}; name the split as one of them")
    images, frames = _image_files(given[0]), []
    photos = FilesByName(by_stem(images, is_image))
    for name in listed_names(read_file(chosen, "list"), chosen, "list"):
        label = files.get(f"{cvat.CLASS_FOLDER}/{name}.png")
        if label is None:  # CVAT lists frames without an annotation, too
            options.skip("frame without annotation", name)
            continue
        photo = photos.get(name, chosen, given[0])
        objects = files.get(f"{cvat.OBJECT_FOLDER}/{name}.png")
        frames.append(SourceFrame(id_of(f"{name}.png"), photo, label, photo.name, objects, class_of))
    if not frames:
        raise InputError(f"{chosen}: 0 images found that have an annotation in {cvat.CLASS_FOLDER}")
    if all(frame.second is None for frame in frames):
        options.log(f"{given[1]}: no {cvat.OBJECT_FOLDER}: things become crowds, which are ignored in training")
    options.skip_unused(images, (frame.image for frame in frames), _BARE, is_image)
    return sorted(frames, key=lambda frame: frame.id)


def read_cvat(frame: SourceFrame, listed: ClassList) -> Instances:
    """Read the instances of an image of CVAT; InputError if a file is invalid or has a colour without a label."""
    labels = read_ids(frame.annotation).astype(np.int64)
    head = read_file(frame.annotation, "image of CVAT")[:26]
    if head.startswith(b"\x89PNG") and head[25] == 0:  # grey: the values of one channel
        np.invert(labels, out=labels)
    objects = np.int64(0) if frame.second is None else read_ids(frame.second)

    def class_of(code: int) -> int:
        if code not in frame.info:
            what = f"value {-1 - code}" if code < 0 else f"colour {code & 255},{code >> 8 & 255},{code >> 16}"
            raise InputError(f"{frame.annotation}: {what} is not in {cvat.LABELMAP}")
        return int(frame.info[code])

    return number_objects(labels, objects, class_of, listed.classes)


def _label_studio_frames(
    given: tuple[str, ...], files: Mapping[str, File], listed: ClassList, options: ConversionOptions
) -> list[SourceFrame]:
    images, frames = _image_files(given[0]), []
    found = by_stem(images, is_image)
    photos = FilesByName(found)
    for name, file in files.items():
        if name == CLASSES:
            continue
        try:
            tasks = parse_json(read_file(file, "tasks", ANNOTATION_BYTES))
            for task in tasks if isinstance(tasks, list) else [tasks]:
                where = f"{file}: task {task.get('id', '')}".rstrip()
                data, (result, further) = task["data"], _result_of(task)
                if further:
                    options.skip(_FURTHER, where, further)
                if result is None:
                    options.skip("task without annotation", where)
                    continue
                stem = _image_of(data, photos, where, given[0])
                sizes = sorted({(r.get("original_width"), r.get("original_height")) for r in result}, key=str)
                info = [_region(region, listed, str(file)) for region in result], sizes
                frames.append(SourceFrame(id_of(f"{stem}.png"), found[stem], file, found[stem].name, info=info))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{file}: not tasks of Label Studio ({type(error).__name__}: {error}); expected `data` and "
                "`annotations` or `predictions`"
            ) from None
    if not frames:
        raise InputError(f"{given[1]}: 0 images found that have an annotation or prediction")
    options.skip_unused(images, (frame.image for frame in frames), _BARE, is_image)
    return sorted(frames, key=lambda frame: frame.id)


def _image_of(data: Mapping[str, Any], photos: FilesByName, where: str, folder: str) -> str:
    """Return the path of the image of a task, without extension, from its path or URL."""
    address = str(data.get(label_studio.TO_NAME) or next((v for v in data.values() if isinstance(v, str)), ""))
    stems = [PurePosixPath(path).with_suffix("") for path in spellings(address)]
    uploaded = [stem.with_name(_UPLOAD_PREFIX.sub("", stem.name, count=1)) for stem in stems if stem.name]
    found = next(filter(None, map(photos.path_of, map(str, [*stems, *uploaded]))), None)
    if found is None:
        raise InputError(f"{where}: {address!r} is not among the {len(photos)} images in {folder}")
    return found


def _result_of(task: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, int]:
    """Return the regions that count, None if there are none, and the number of further annotations of the task.

    The annotation that is marked as ground truth counts, else the last one with regions, else the last prediction.
    """
    # some exports have the numbers of predictions only
    given = [a for a in task.get("annotations") or [] if isinstance(a, dict) and not a.get("was_cancelled")]
    predictions = [p for p in task.get("predictions") or [] if isinstance(p, dict)]
    ranked = sorted(given, key=lambda a: (bool(a.get("ground_truth")), bool(a["result"])))
    chosen = ranked or predictions
    return list(chosen[-1]["result"]) if chosen else None, max(0, len(given) - 1)


def _region(region: Mapping[str, Any], listed: ClassList, where: str) -> tuple[int, bytes | list[list[float]]] | None:
    """Return class and shape of a region; None if it has no mask or no label."""
    value = region.get("value") or {}
    label = label_studio.region_label(value)
    if label is None or not ("rle" in value or "points" in value):
        return None
    if region.get("image_rotation"):
        raise InputError(f"{where}: has a region on a rotated image; rotate the image itself")
    shape = bytes(list(value["rle"])) if "rle" in value else [[float(x), float(y)] for x, y in value["points"]]
    return listed.class_named(label, where), shape


def read_label_studio(frame: SourceFrame, listed: ClassList) -> Instances:
    """Read the regions of an image; InputError if one is invalid."""
    size = size_of(frame.image)
    info, sizes = frame.info
    for stated in sizes:
        check_stated_size(f"{frame.annotation}: a region", stated, frame.image, size)
    regions = ((_decode(region[1], size, frame), region[0]) for region in info if region is not None)
    found = stack_regions(regions, size, frame, listed.classes)
    other = ("region without a mask or label", str(frame.image))
    return replace(found, skipped=found.skipped + (other,) * info.count(None))


def _decode(shape: bytes | list[list[float]], size: tuple[int, int], frame: SourceFrame) -> Runs:
    height, width = size
    if not isinstance(shape, bytes):
        corners = [value for x, y in shape for value in (x * width / 100, y * height / 100)]
        return decode_segmentation([corners], size, f"{frame.image}: an invalid `segmentation` in its annotations")
    try:
        return mask_runs(label_studio.decode_brush(shape, size))
    except ValueError as error:
        raise InputError(f"{frame.annotation}: a region of {frame.image}: {error}") from None
