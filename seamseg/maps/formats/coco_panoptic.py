"""Reading of the COCO panoptic format: a JSON of segments, and one PNG per image with segment ids as colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.maps.panoptic_map import ClassInfo, SegmentInfo
from seamseg.utils.errors import InputError, describe_error
from seamseg.utils.files import join_inside, read_json
from seamseg.utils.limits import ANNOTATION_BYTES, whole_number


@dataclass(frozen=True)
class Annotation:
    """The annotation of one image in the JSON."""

    image_id: int | str
    file_name: str
    segments_info: list[dict[str, Any]]


@dataclass(frozen=True)
class CocoPanoptic:
    """A COCO panoptic JSON, the folder of its PNGs, and its annotations in the order of the file.

    `categories` is None if the file has none, which is valid for predictions. `image_names` has the file name of the
    image by image id, for the images listed in the file; `colours` those of the category ids with a colour.
    """

    path: Path
    folder: Path
    annotations: list[Annotation]
    categories: list[ClassInfo] | None
    image_names: Mapping[int | str, str]
    colours: Mapping[int, tuple[int, int, int]]

    def png(self, annotation: Annotation) -> Path:
        """Return the path of the id map of an image."""
        return join_inside(self.folder, annotation.file_name)


def default_folder(json_path: Path) -> Path:
    """Return the default folder of the PNGs: the path of the JSON without `.json`."""
    return json_path.with_suffix("") if json_path.suffix == ".json" else json_path.with_name(json_path.name + "_png")


def read_coco_panoptic(json_path: str | Path, folder: str | Path | None = None) -> CocoPanoptic:
    """Read a COCO panoptic JSON; the PNGs, by default in its path without `.json`, are read later, one by one."""
    path = Path(json_path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a COCO panoptic JSON")
    content = read_json(path, "COCO panoptic JSON", ANNOTATION_BYTES)
    try:
        annotations = [
            Annotation(_image_id(entry["image_id"]), str(entry["file_name"]), list(entry["segments_info"]))
            for entry in content["annotations"]
        ]
        images = content.get("images") or []
        image_names = {_image_id(i["id"]): str(i["file_name"]) for i in images if "file_name" in i and "id" in i}
        entries = content.get("categories")
        categories = None if entries is None else [_category(entry) for entry in entries]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(
            f"{path}: not a COCO panoptic file ({describe_error(error)}); it needs `annotations` with `image_id`, "
            "`file_name` and `segments_info`, and `categories` with `id`, `name` and `isthing`"
        ) from error
    if categories is not None and len({category.id for category in categories}) < len(categories):
        raise InputError(f"{path}: two categories have the same id")
    where = default_folder(path) if folder is None else Path(folder)
    if not where.is_dir():
        raise InputError(
            f"{where}: no such folder (PNGs of {path.name}); name another one with `gt_folder` or `pred_folder`"
        )
    return CocoPanoptic(path, where, annotations, categories, image_names, _colours(content))


def segments_of(annotation: Annotation, class_of: Mapping[int, int], source: Path) -> list[SegmentInfo]:
    """Parse the segments of an image and look up their dense classes by `category_id`; `source` names the JSON.

    A segment without id or class, listed twice, or with an unknown category is an InputError.
    """
    segments, ids = [], set()
    for entry in annotation.segments_info:
        try:
            identity, category = whole_number(entry["id"]), whole_number(entry["category_id"])
            area = entry.get("area")
            if area is not None:  # like the official tools, with fractions of a pixel
                area = float(area)
                area = int(area) if area.is_integer() else area
                if not math.isfinite(area):
                    raise ValueError(f"area {area}")
            # like the official tools: 1 or true, nothing else
            crowd = entry.get("iscrowd", 0) == 1
            score = None if entry.get("score") is None else float(entry["score"])
            score = score if score is not None and math.isfinite(score) else None
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InputError(
                f"{source}: image {annotation.image_id}: invalid segment ({type(error).__name__}: {error})"
            ) from error
        if category not in class_of:
            raise InputError(
                f"{source}: image {annotation.image_id}: segment {identity} has category_id {category}, "
                "which is not a category of the ground truth"
            )
        if identity in ids:
            raise InputError(f"{source}: image {annotation.image_id}: segment {identity} is listed twice")
        ids.add(identity)
        segments.append(SegmentInfo(identity, class_of[category], crowd, area, score))
    return segments


def _image_id(value: Any) -> int | str:
    return value if isinstance(value, str) else whole_number(value)


def _category(entry: dict[str, Any]) -> ClassInfo:
    if entry["isthing"] not in (0, 1):
        raise ValueError(f"isthing {entry['isthing']!r:.40}, expected 0 or 1")
    return ClassInfo(str(entry.get("name", entry["id"])), whole_number(entry["id"]), bool(entry["isthing"]))


def _colours(content: dict[str, Any]) -> dict[int, tuple[int, int, int]]:
    found = {}
    for category in content.get("categories") or []:
        colour = category.get("color")
        if isinstance(colour, list) and len(colour) == 3 and all(isinstance(v, int) and 0 <= v < 256 for v in colour):
            found[int(category["id"])] = (colour[0], colour[1], colour[2])
    return found
