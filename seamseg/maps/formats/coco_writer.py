"""Writing of panoptic results and of the ground truth of dataset folders in the COCO panoptic format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from seamseg.maps.formats.coco_panoptic import default_folder
from seamseg.maps.formats.id_png import MAX_ID, encode_id_png, write_id_png
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.idmaps.resize import IdMap
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult, Segment
from seamseg.utils.errors import InputError
from seamseg.utils.files import join_inside, refuse_links, replacing, write_json

CocoEntry = dict[str, Any]
"""The entries of an image in the JSON: `image` and `annotation`."""


class CocoPanopticWriter:
    """Write one PNG per image as results arrive, and the JSON at the end; all files are written atomically.

    `category_id` is the id of the class in the original data set if these ids are unique, else the class index + 1. The
    ids of segments are chosen such that the colours in the PNG are close to those of the classes. The format has no
    crowds in predictions, so predicted crowds become void.

    Several processes can have a writer for the same folder: gather `images` and `annotations` in one of them, pass them
    to :meth:`extend` and write the JSON there.

    Parameters
    ----------
    json_path : path of the JSON
    metadata : classes and colours
    folder : folder of the PNGs, by default the JSON's path without `.json`

    Attributes
    ----------
    images, annotations : entries of the JSON so far
    """

    def __init__(self, json_path: str | Path, metadata: Metadata, folder: str | Path | None = None) -> None:
        self.json_path = Path(json_path)
        self.folder = default_folder(self.json_path) if folder is None else Path(folder)
        self.classes = class_infos(metadata)
        self.palette = [tuple(rgb) for rgb in metadata.palette]
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def add(self, image_id: int | str, result: PanopticResult, photo_name: str | None = None) -> dict[str, Any]:
        """Write the PNG of an image and keep its entries; thread-safe.

        Parameters
        ----------
        image_id : unique; also the name of the PNG, `/` creates subfolders
        result : result at the size of the image
        photo_name : file name of the image, for the JSON

        Returns
        -------
        annotation : its entry in the JSON; `segments_info` in the order of the segments, without crowds

        Raises
        ------
        InputError
            if the name is outside the folder
        """
        segments = [s for s in result.segments if not s.iscrowd]
        return self.add_map(image_id, result.id_rows, segments, photo_name)

    def add_map(
        self, image_id: int | str, id_map: IdMap, segments: Sequence[Segment], photo_name: str | None = None
    ) -> dict[str, Any]:
        """Write an id map like :meth:`add`, but keep crowds; ids without a segment become void."""
        image, annotation = self._write_map(image_id, id_map, segments, photo_name)
        self.images.append(image)
        self.annotations.append(annotation)
        return annotation

    def write(self, image_id: int | str, result: PanopticResult, photo_name: str | None = None) -> CocoEntry:
        """Write the PNG like :meth:`add`, but return the entries instead of keeping them; see :meth:`write_json_of`."""
        segments = [s for s in result.segments if not s.iscrowd]
        image, annotation = self._write_map(image_id, result.id_rows, segments, photo_name)
        return {"image": image, "annotation": annotation}

    def _write_map(
        self, image_id: int | str, id_map: IdMap, segments: Sequence[Segment], photo_name: str | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        annotation, values = encode_panoptic(image_id, segments, self.classes, self.palette)
        path = join_inside(self.folder, f"{image_id}.png")
        write_id_png(refuse_links(self.folder.parent, path), id_map, values)
        height, width = id_map.shape
        image = {"id": image_id, "file_name": photo_name or f"{image_id}", "height": height, "width": width}
        return image, annotation

    def extend(self, images: Iterable[dict[str, Any]], annotations: Iterable[dict[str, Any]]) -> None:
        """Add the entries of other writers."""
        self.images.extend(images)
        self.annotations.extend(annotations)

    def write_json(self) -> Path:
        """Write the JSON, images in the order of their ids.

        Raises
        ------
        InputError
            if two images have the same id
        """
        ids = [i["id"] for i in self.images]
        if len(set(ids)) != len(ids):
            raise _duplicate_id(self.json_path, Counter(ids).most_common(1)[0][0])
        content = {
            "images": sorted(self.images, key=lambda i: str(i["id"])),
            "annotations": sorted(self.annotations, key=lambda a: str(a["image_id"])),
            "categories": self._categories(),
        }
        write_json(self.json_path, content)
        return self.json_path

    def write_json_of(self, entries: Callable[[], Iterable[CocoEntry]]) -> Path:
        """Write the JSON of any number of images in constant memory.

        Parameters
        ----------
        entries : returns the entries of :meth:`write` of all images; called twice

        Raises
        ------
        InputError
            if two images have the same id
        """
        ids: set[int | str] = set()
        with replacing(self.json_path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for part in ("image", "annotation"):
                file.write(f'{"{" if part == "image" else "], "}"{part}s": [')
                for k, entry in enumerate(entries()):
                    file.write((", " if k else "") + json.dumps(entry[part], allow_nan=False))
                    if part == "image":
                        identity = entry[part]["id"]
                        if identity in ids:
                            raise _duplicate_id(self.json_path, identity)
                        ids.add(identity)
            file.write(f'], "categories": {json.dumps(self._categories())}}}\n')
        return self.json_path

    def _categories(self) -> list[dict[str, Any]]:
        return [
            {"id": c.id, "name": c.name, "isthing": int(c.isthing), "color": list(colour)}
            for c, colour in zip(self.classes, self.palette)
        ]


def encode_panoptic(
    image_id: int | str, segments: Sequence[Segment], classes: Sequence[ClassInfo], palette: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Convert the segments of an image to its entry in the JSON and `(id, value)` of each for :func:`write_id_png`.

    The values are ids close to the colours of the classes (`palette`); the order of the segments is preserved.
    """
    new_ids = _assign_ids(segments, palette)
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
    return annotation, encode_id_png(result.id_rows, values)


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


def _assign_ids(segments: Sequence[Segment], palette: Sequence[tuple[int, ...]]) -> list[int]:
    used = {0}
    out = []
    # one search for each class: the ids before its position are used
    near = {category: _ids_near(tuple(palette[category])) for category in {s.category for s in segments}}
    for s in segments:
        identity = next(i for i in near[s.category] if i not in used)
        used.add(identity)
        out.append(identity)
    return out


def _duplicate_id(json_path: Path, identity: int | str) -> InputError:
    return InputError(f"{json_path}: two images have the id {identity}; ids must be unique")


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
