"""Converts instance-id maps to COCO detection annotations with run-length encoded masks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from seamseg.maps.evaluation.coco_ap import instances_of_map
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.id_runs import Runs, runs_by_id
from seamseg.utils.files import replacing


def thing_annotations(
    ids: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], classes: Metadata
) -> list[dict[str, Any]]:
    """Return the annotations of the things of an image, including crowds, by increasing id.

    `ids` are `L x H x W`, 0 void; ids without pixels are omitted. `segmentation` is a compressed RLE with its counts as
    text.
    """
    height, width = ids.shape[-2:]
    found = []
    for thing in instances_of_map(ids, cat, iscrowd, classes.num_stuff, classes.num_classes):
        rle = {"size": [height, width], "counts": thing.counts}
        found.append(
            {
                "category_id": thing.category + classes.num_stuff,
                "iscrowd": int(thing.iscrowd),
                "area": int(coco_mask.area(rle)),
                "bbox": [float(side) for side in thing.box],
                "segmentation": {**rle, "counts": (thing.counts or b"").decode("ascii")},
                "width": width,
                "height": height,
            }
        )
    return found


def mask_runs(mask: np.ndarray) -> Runs:
    """Return the runs of the pixels of a mask, bool `H x W`."""
    return runs_by_id(mask.view(np.uint8).T).get(1, (np.zeros(0, np.int64), np.zeros(0, np.int64)))


def decode_rle(counts: bytes | str | Sequence[int], pixels: int) -> Runs:
    """Decode the counts of an RLE of COCO for an image of `pixels` pixels; ValueError if they are invalid.

    The counts are lengths of the runs outside and inside the mask in turns, or those compressed to ASCII: the
    differences to the last but one, five bits a character, lowest first. Unlike `pycocotools.mask.decode` this takes
    neither the time nor the memory of a whole mask.
    """
    if isinstance(counts, (bytes, str)):
        text = counts.encode("ascii", "ignore") if isinstance(counts, str) else counts
        if len(text) < len(counts):
            raise ValueError("its compressed `counts` are not ASCII")
        code = np.frombuffer(text, np.uint8).astype(np.int64)
        code -= 48
        last = code & 32 == 0
        first = np.flatnonzero(np.concatenate(([True], last[:-1]))) if len(code) else np.zeros(0, np.int64)
        place = np.arange(len(code)) - np.repeat(first, np.diff(first, append=len(code)))
        if len(code) and (not last[-1] or code.min() < 0 or code.max() > 63 or place.max() > 7):
            raise ValueError("its compressed `counts` are broken")
        values = np.add.reduceat((code & 31) << 5 * place, first) if len(code) else first
        values -= np.where(code[last] & 16 > 0, 32 << 5 * place[last], 0)
        values[1::2] = np.cumsum(values[1::2])
        values[2::2] = np.cumsum(values[2::2])
    else:
        values = np.array(counts, dtype=np.int64)
    if values.ndim != 1 or (len(values) and not 0 <= values.min() <= values.max() <= pixels) or values.sum() > pixels:
        raise ValueError(f"its `counts` are not runs of {pixels} pixels")
    end = np.cumsum(values)[1::2]
    length = values[1::2]
    return (end - length)[length > 0], length[length > 0]


def write_coco_json(path: Path, classes: Metadata, images: Iterable[Mapping[str, Any]]) -> None:
    """Write `coco/<split>.json` atomically, with the thing classes as categories, by their index.

    `images` have `id`, `file_name`, `size` and `annotations` of :func:`thing_annotations`. Annotation ids start at 1,
    since pycocotools treats a match with annotation 0 as no match.
    """
    images = list(images)
    entries = (
        {"id": i["id"], "file_name": i["file_name"], "width": i["size"][1], "height": i["size"][0]} for i in images
    )
    annotations = ({"image_id": i["id"], **a} for i in images for a in i["annotations"])
    numbered = ({"id": number, **a} for number, a in enumerate(annotations, start=1))
    categories = [{"id": c, "name": classes.categories[c]} for c in range(classes.num_stuff, classes.num_classes)]
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        # one by one: otherwise the text of a large split would be in memory too
        file.write('{"info": {"version": "1.0"},\n"images": [')
        _write_items(file, entries)
        file.write(f'],\n"categories": {json.dumps(categories)},\n"annotations": [')
        _write_items(file, numbered)
        file.write("]}\n")


def _write_items(file: Any, items: Iterable[Mapping[str, Any]]) -> None:
    for number, item in enumerate(items):
        file.write(("," if number else "") + "\n" + json.dumps(item))
