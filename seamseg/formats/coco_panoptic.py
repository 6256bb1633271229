"""The COCO panoptic format: a JSON of segments, and a PNG an image whose colours are the ids of the segments.

A pixel of colour (R, G, B) belongs to segment R + 256 G + 65536 B; 0 is void.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.formats.id_png import MAX_ID, read_id_png, read_id_runs, write_id_png
from seamseg.idmaps.id_runs import IdRuns
from seamseg.panoptic_map import ClassInfo, SegmentInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes
from seamseg.utils.limits import ANNOTATION_BYTES, parse_json

__all__ = [
    "MAX_ID",
    "Annotation",
    "CocoPanoptic",
    "default_folder",
    "read_coco_panoptic",
    "read_id_png",
    "segments_of",
    "write_id_png",
]


@dataclass(frozen=True)
class Annotation:
    """The segments of one image, as the JSON has them."""

    image_id: int | str
    file_name: str
    segments_info: list[dict[str, Any]]


@dataclass(frozen=True)
class CocoPanoptic:
    """A COCO panoptic JSON and the folder of its PNGs.

    Attributes
    ----------
    path, folder : of the JSON, of the PNGs
    annotations : in the order of the file
    categories : None if the file has none, as predictions may
    photo_names : file name of the photo by image id, for the images that the file describes
    colours : of the categories, by their ids, where the file has them
    """

    path: Path
    folder: Path
    annotations: list[Annotation]
    categories: list[ClassInfo] | None
    photo_names: Mapping[int | str, str]
    colours: Mapping[int, tuple[int, int, int]]

    def read_ids(self, annotation: Annotation) -> np.ndarray:
        """The id map of an image, `H x W` uint32."""
        return read_id_png(self.folder / annotation.file_name)

    def read_runs(self, annotation: Annotation) -> IdRuns:
        """The id map of an image as runs."""
        return read_id_runs(self.folder / annotation.file_name)


def default_folder(json_path: Path) -> Path:
    """Where the PNGs of a JSON lie if nothing else is said: beside it, in the folder of its name without `.json`."""
    return json_path.with_suffix("") if json_path.suffix == ".json" else json_path.with_name(json_path.name + "_png")


def read_coco_panoptic(json_path: str | Path, folder: str | Path | None = None) -> CocoPanoptic:
    """Read a COCO panoptic JSON; the PNGs are read later, one by one.

    Parameters
    ----------
    json_path : the JSON
    folder : of the PNGs; by default the JSON's path without `.json`

    Raises
    ------
    InputError
        if the file or the folder is missing or is not of the format
    """
    path = Path(json_path)
    content = _read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("annotations"), list):
        raise InputError(f"{path}: not a COCO panoptic file: it has no list of `annotations`")
    annotations = [_annotation(entry, path) for entry in content["annotations"]]
    images = content.get("images") or []
    if not isinstance(images, list):
        raise InputError(f"{path}: not a COCO panoptic file: its `images` are no list")
    photo_names = {
        image["id"]: str(image["file_name"])
        for image in images
        if isinstance(image, dict) and isinstance(image.get("id"), (int, str)) and "file_name" in image
    }
    where = default_folder(path) if folder is None else Path(folder)
    if not where.is_dir():
        raise InputError(
            f"{where}: no such folder, where the PNGs of {path.name} should be; "
            "--gt-folder and --pred-folder name others"
        )
    return CocoPanoptic(path, where, annotations, _categories(content, path), photo_names, _colours(content))


def segments_of(annotation: Annotation, class_of: Mapping[int, int], source: Path) -> list[SegmentInfo]:
    """The segments of an image with their dense classes.

    Parameters
    ----------
    annotation : of the image
    class_of : dense class by `category_id`
    source : the JSON, for errors

    Raises
    ------
    InputError
        if a segment lacks its id or class, is listed twice, or is of an unknown category
    """
    segments, seen = [], set()
    for entry in annotation.segments_info:
        try:
            identity, category = int(entry["id"]), int(entry["category_id"])
            stated = entry.get("area")
            area = None if stated is None else _area(stated)
            # the official tools: 1 or true, nothing else
            crowd = entry.get("iscrowd", 0) == 1
            score = _score(entry.get("score"))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InputError(
                f"{source}: image {annotation.image_id}: a segment is incomplete ({type(error).__name__}: {error})"
            ) from error
        if category not in class_of:
            raise InputError(
                f"{source}: image {annotation.image_id}: segment {identity} has category_id {category}, "
                "which is not among the categories of the ground truth"
            )
        if identity in seen:
            raise InputError(f"{source}: image {annotation.image_id}: segment {identity} is listed twice")
        seen.add(identity)
        segments.append(SegmentInfo(identity, class_of[category], crowd, area, score))
    return segments


def _area(stated: Any) -> int | float:
    """A stated area, which the official tools take as it is, fractions of a pixel too."""
    area = float(stated)
    if not math.isfinite(area):
        raise ValueError(f"an area of {stated}")
    return int(area) if area.is_integer() else area


def _score(stated: Any) -> float | None:
    """A score, which counts in no number; None where it is none, as NaN."""
    score = math.nan if stated is None else float(stated)
    return score if math.isfinite(score) else None


def _read_json(path: Path) -> Any:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a COCO panoptic JSON")
    try:
        return parse_json(read_bytes(path, "COCO panoptic JSON", ANNOTATION_BYTES))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file, or a truncated one: {error}") from error


def _annotation(entry: Any, path: Path) -> Annotation:
    try:
        image_id, file_name, segments = entry["image_id"], str(entry["file_name"]), entry["segments_info"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a COCO panoptic file: every annotation needs `image_id`, `file_name` and `segments_info` "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(segments, list) or not isinstance(image_id, (int, str)):
        raise InputError(f"{path}: not a COCO panoptic file: the annotation of {file_name} is not of its form")
    return Annotation(image_id, file_name, segments)


def _categories(content: dict[str, Any], path: Path) -> list[ClassInfo] | None:
    entries = content.get("categories")
    if entries is None:
        return None
    try:
        classes = [ClassInfo(str(c.get("name", c["id"])), int(c["id"]), bool(c["isthing"])) for c in entries]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(
            f"{path}: every category needs `id`, `name` and `isthing` ({type(error).__name__}: {error})"
        ) from error
    ids = [c.id for c in classes]
    if len(set(ids)) != len(ids):
        raise InputError(f"{path}: two categories have the same id")
    return classes


def _colours(content: dict[str, Any]) -> dict[int, tuple[int, int, int]]:
    found = {}
    for category in content.get("categories") or []:
        colour = category.get("color")
        if isinstance(colour, list) and len(colour) == 3 and all(isinstance(v, int) and 0 <= v < 256 for v in colour):
            found[int(category["id"])] = (colour[0], colour[1], colour[2])
    return found
