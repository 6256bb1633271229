"""Writing of panoptic results and of the ground truth of dataset folders in the COCO panoptic format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.formats.coco_panoptic import default_folder
from seamseg.maps.formats.id_png import MAX_ID, encode_id_png, write_id_png
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult, Segment
from seamseg.utils.errors import InputError
from seamseg.utils.files import join_inside, replacing

CocoEntry = dict[str, Any]
"""The entries of an image in the JSON: `image` and `annotation`."""


class CocoPanopticWriter:
    """Write one PNG per image as results arrive, and the JSON at the end; all files are written atomically.

    `category_id` is the id of the class in the original data set if these ids are unique, else the class index + 1. The
    ids of segments are chosen such that the colours in the PNG are close to those of the classes. The folder of the
    PNGs is by default the JSON's path without `.json`. Several processes can have a writer for the same folder: gather
    the entries in one of them and write the JSON there.
    """

    def __init__(self, json_path: str | Path, metadata: Metadata, folder: str | Path | None = None) -> None:
        self.json_path = Path(json_path)
        self.folder = default_folder(self.json_path) if folder is None else Path(folder)
        self.classes = class_infos(metadata)
        self.palette = [tuple(rgb) for rgb in metadata.palette]

    def write(self, image_id: int | str, result: PanopticResult, image_name: str | None = None) -> CocoEntry:
        """Write the PNG of a result at the size of its image, and return the entries; thread-safe.

        `image_id` is also the name of the PNG, in which `/` creates sub-folders; one outside is an InputError.
        `image_name` is the file name of the image. The format has no crowds in predictions: they become void.
        """
        segments = [s for s in result.segments if not s.iscrowd]
        return self.write_map(image_id, result.id_map, segments, image_name)

    def write_map(
        self, image_id: int | str, id_map: np.ndarray, segments: Sequence[Segment], image_name: str | None = None
    ) -> CocoEntry:
        """Write an id map like :meth:`write`, but keep crowds; ids without a segment become void."""
        annotation, values = encode_panoptic(image_id, segments, self.classes, self.palette)
        write_id_png(join_inside(self.folder, f"{image_id}.png"), id_map, values)
        height, width = id_map.shape
        image = {"id": image_id, "file_name": image_name or f"{image_id}", "height": height, "width": width}
        return {"image": image, "annotation": annotation}

    def write_json(self, entries: Iterable[CocoEntry]) -> Path:
        """Write the JSON, images in the order of their ids; InputError if two have the same id."""
        ordered = sorted(entries, key=lambda entry: str(entry["image"]["id"]))
        return self.write_json_of(lambda: ordered)

    def write_json_of(self, entries: Callable[[], Iterable[CocoEntry]]) -> Path:
        """Write the JSON of any number of images, in their order, in constant memory: `entries` is called twice."""
        ids: set[int | str] = set()
        with replacing(self.json_path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for part in ("image", "annotation"):
                file.write(f'{"{" if part == "image" else "], "}"{part}s": [')
                for k, entry in enumerate(entries()):
                    file.write((", " if k else "") + json.dumps(entry[part], allow_nan=False))
                    if part == "image":
                        identity = entry[part]["id"]
                        if identity in ids:
                            raise InputError(f"{self.json_path}: two images have the id {identity}; ids must be unique")
                        ids.add(identity)
            categories = [
                {"id": c.id, "name": c.name, "isthing": int(c.isthing), "color": list(colour)}
                for c, colour in zip(self.classes, self.palette)
            ]
            file.write(f'], "categories": {json.dumps(categories)}}}\n')
        return self.json_path


def encode_panoptic(
    image_id: int | str, segments: Sequence[Segment], classes: Sequence[ClassInfo], palette: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Convert the segments of an image to its entry in the JSON and `(id, value)` of each for :func:`write_id_png`.

    The values are ids close to the colours of the classes (`palette`); the order of the segments is preserved.
    """
    # one search for each class: the ids before its position are used
    near = {category: _ids_near(tuple(palette[category])) for category in {s.category for s in segments}}
    used, new_ids = {0}, list[int]()
    for s in segments:
        new_ids.append(next(i for i in near[s.category] if i not in used))
        used.add(new_ids[-1])
    annotation = {
        "image_id": image_id,
        "file_name": f"{image_id}.png",
        "segments_info": [_entry(s, new, classes[s.category].id) for s, new in zip(segments, new_ids)],
    }
    return annotation, [(s.id, new) for s, new in zip(segments, new_ids)]


def encode_result(result: PanopticResult, metadata: Metadata) -> tuple[dict[str, Any], bytes]:
    """Return the annotation of a result, and the content of the PNG that :class:`CocoPanopticWriter` writes."""
    segments = [s for s in result.segments if not s.iscrowd]
    annotation, values = encode_panoptic(0, segments, class_infos(metadata), metadata.palette)
    return annotation, encode_id_png(result.id_map, values)


def _entry(segment: Segment, new_id: int, category_id: int) -> dict[str, Any]:
    y0, x0, y1, x1 = (round(v) for v in segment.box)
    entry = {
        "id": new_id,
        "category_id": category_id,
        "iscrowd": int(segment.iscrowd),
        "area": segment.area,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
    }
    if segment.score is not None:
        entry["score"] = round(segment.score, 6)
    return entry


def _ids_near(colour: tuple[int, ...]) -> Iterator[int]:
    """Generate the id of a colour, then ids of similar colours, then all others."""
    # prime steps through windows of different widths have a long period
    windows = [
        (max(c - reach, 0), min(c + reach, 255), c, step) for c, reach, step in zip(colour, (48, 44, 41), (37, 59, 71))
    ]
    for k in range(4096):
        red, green, blue = (low + (c - low + k * step) % (high - low + 1) for low, high, c, step in windows)
        yield red + 256 * green + 65536 * blue
    yield from range(1, MAX_ID + 1)
