"""Formats for evaluation and further processing: COCO, Cityscapes, Mapillary Vistas, tensors, maps of custom heads."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.config.components import register
from seamseg.maps.formats.cityscapes.instance_files import mask_png
from seamseg.maps.formats.cityscapes.layout import VOID_LABEL, frame_name, with_label_ids
from seamseg.maps.formats.coco_writer import CocoPanopticWriter
from seamseg.maps.formats.label_png import instance_map, label_map, write_grey_png
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.formats.vistas import INSTANCES_PER_LABEL, image_stem, vistas_labels, void_label, with_panoptic_ids
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.pasting import paste_detections
from seamseg.maps.predictions import ArrayPrediction, MapFormat
from seamseg.maps.visualize.maps import encode_map
from seamseg.predicting.source import Source
from seamseg.predicting.writers.images import OutputFormat, Record, Records
from seamseg.results import Detections, ImageResult, Panoptic, Thresholds
from seamseg.utils.files import replacing, write_atomically, write_json

COCO_JSON = "panoptic.json"
RESULTS_JSON = "coco_results.json"
MASKS = "masks"


class PanopticWriter(OutputFormat[Panoptic]):
    """Base of the formats with a `panoptic.json` for all images, written by the main process."""

    kinds = ("panoptic",)
    final = COCO_JSON

    def __init__(self, out: Path, classes: Metadata, keys: Any = None) -> None:
        super().__init__(out, classes, keys)
        self._panoptic = CocoPanopticWriter(out / COCO_JSON, classes)

    def finish(self, records: Records) -> None:
        """Write `panoptic.json`."""
        self._panoptic.write_json_of(records)


@register("format", "coco")
class CocoWriter(PanopticWriter):
    """The COCO panoptic format: `panoptic/<name>.png` and `panoptic.json`."""

    map_only = True
    file = "panoptic/{}.png"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Panoptic) -> Record:
        """Write the PNG and return the segments."""
        return self._panoptic.write(source.name, result, source.relative)


@register("format", "cityscapes")
class CityscapesWriter(PanopticWriter):
    """Submissions to the three benchmarks of Cityscapes, in folders below `OUT/cityscapes/`.

    `panoptic.json` and `panoptic/<frame>.png` are in the COCO format, with label ids as `category_id`.
    `pixel/<frame>.png` holds the label id of each pixel of the panoptic map, 0 for void; pixels of things that belong
    to no detection have their label here, and are void in `panoptic/`. `instance/<frame>.txt` and `instance/masks/`
    hold the detections before the fusion. `<frame>` is the name of the image without folders and `_leftImg8bit`.
    InputError if the model has a class that Cityscapes lacks.
    """

    all_classes = True

    def __init__(self, out: Path, metadata: Metadata, keys: Any = None) -> None:
        self._classes = with_label_ids(metadata, "the model")
        super().__init__(out / "cityscapes", self._classes, keys)

    def paths(self, source: Source) -> list[Path]:
        """Return `panoptic/<frame>.png`, `pixel/<frame>.png` and `instance/<frame>.txt`."""
        frame = frame_name(source.name)
        return [
            self._panoptic.folder / f"{frame}.png",
            self.out / "pixel" / f"{frame}.png",
            self.out / "instance" / f"{frame}.txt",
        ]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Panoptic) -> Record:
        """Write the results of an image and return its segments."""
        frame, labels = frame_name(source.name), self._classes.original_ids
        record = self._panoptic.write(frame, result, source.relative)
        pixels = label_map(result.id_map, result.segments, labels, VOID_LABEL)
        write_grey_png(self.out / "pixel" / f"{frame}.png", pixels)
        things = labels[self._classes.num_stuff :]
        write_detections(self.out / "instance", frame, prediction, result.size, things)
        return record


@register("format", "vistas")
class VistasWriter(PanopticWriter):
    """The layout of Mapillary Vistas in `OUT/vistas/`, with the original ids of the classes as labels.

    `labels/<name>.png` holds the label of each pixel of the panoptic map (8 bit, void is the label after the last);
    `instances/<name>.png` is the map as in the data set, label * 256 + number (16 bit); `instances/<name>.txt` and
    `instances/masks/` hold the detections before the fusion, as the official evaluation reads them; `panoptic.json`
    and `panoptic/<name>.png` are in the COCO format, with label + 1 as `category_id`. Pixels of things that belong to
    no detection have their label in `labels/` and are void elsewhere. InputError if the original ids are not labels.
    """

    all_classes = True

    def __init__(self, out: Path, metadata: Metadata, keys: Any = None) -> None:
        self._labels = vistas_labels(metadata, "the model")
        self._void = void_label(self._labels)
        self._num_stuff = metadata.num_stuff
        super().__init__(out / "vistas", with_panoptic_ids(metadata, self._labels), keys)

    def paths(self, source: Source) -> list[Path]:
        """Return `panoptic/<name>.png`, `labels/<name>.png`, `instances/<name>.png` and `instances/<name>.txt`."""
        name = image_stem(source.name)
        return [
            self._panoptic.folder / f"{name}.png",
            self.out / "labels" / f"{name}.png",
            self.out / "instances" / f"{name}.png",
            self.out / "instances" / f"{name}.txt",
        ]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Panoptic) -> Record:
        """Write the results of an image and return its segments."""
        name, labels = image_stem(source.name), self._labels
        record = self._panoptic.write(name, result, source.relative)
        pixels = label_map(result.id_map, result.segments, labels, self._void)
        write_grey_png(self.out / "labels" / f"{name}.png", pixels)
        instances = instance_map(
            result.id_map,
            [s for s in result.segments if not s.iscrowd],
            labels,
            self._num_stuff,
            INSTANCES_PER_LABEL,
            INSTANCES_PER_LABEL,
            self._void * INSTANCES_PER_LABEL,
            source.name,
        )
        write_grey_png(self.out / "instances" / f"{name}.png", instances)
        write_detections(self.out / "instances", name, prediction, result.size, labels[self._num_stuff :])
        return record


@register("format", "coco-results")
class CocoResultsWriter(OutputFormat[Detections]):
    """All detections in COCO's format of results: `coco_results.json`, a list that `COCO.loadRes` reads.

    `image_id` is the name of the image without its ending, with its sub-folder, as in `coco/<split>.json` of a dataset
    folder; see :meth:`seamseg.results.detections.Detections.to_coco` for the rest.
    """

    kinds = ("instance_seg", "detection")
    final = RESULTS_JSON

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Detections) -> Record:
        """Return the entries of an image."""
        thresholds = Thresholds(self.least_score)
        chosen = Detections.of(prediction, result.size, self.metadata, thresholds, self.chosen)
        return {"results": chosen.to_coco(source.name)}

    def finish(self, records: Records) -> None:
        """Write `coco_results.json`, an entry a line, in constant memory; `[]` if nothing was found."""
        with replacing(self.out / RESULTS_JSON) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write("[")
            between = "\n"
            for record in records():
                for entry in record["results"]:
                    file.write(between + json.dumps(entry, allow_nan=False))
                    between = ",\n"
            file.write("]\n" if between == "\n" else "\n]\n")


@register("format", "json")
class JsonWriter(OutputFormat[ImageResult]):
    """A file for each image, `json/<name>.json`: the JSON of `seamseg serve`, with the masks as run lengths of COCO."""

    kinds = ("panoptic", "instance_seg", "detection", "semantic")
    map_only = True
    file = "json/{}.json"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Write the file."""
        content = {"image": source.relative, **result.to_json(masks=True)}
        write_json(self.paths(source)[0], content)


@register("format", "csv")
class CsvWriter(OutputFormat[ImageResult]):
    """`counts.csv`: a row for each class of each image, with the number of its segments or objects and their area.

    An image without any has a row without a class.
    """

    kinds = ("panoptic", "instance_seg", "detection", "semantic")
    map_only = True
    final = "counts.csv"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> Record:
        """Return the counts of an image."""
        counts: dict[str, list[float]] = {}
        for _, entry in result.entries():
            row = counts.setdefault(entry["class"], [0, 0])
            row[0] += 1
            row[1] += entry["area"]
        return {"image": source.relative, "counts": counts}

    def finish(self, records: Records) -> None:
        """Write `counts.csv`."""
        # a name may have bytes that are not UTF-8
        options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
        with replacing(self.out / self.final) as temporary, open(temporary, "w", **options) as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("image", "class", "count", "area"))
            for record in records():
                for name, (count, area) in (record["counts"] or {"": (0, 0)}).items():
                    table.writerow((record["image"], name, count, area))


def write_detections(
    folder: Path, name: str, prediction: ArrayPrediction, size: tuple[int, int], labels: Sequence[int]
) -> None:
    """Write the detections of an image before the fusion, as the benchmarks of Cityscapes and Vistas read them.

    `<name>.txt`, which is written last, has a line `masks/<name>_<k>.png label score` for each; the mask is 255 on the
    object. `labels` has one for each thing class. Empty masks are omitted, and all for models without masks.
    """
    lines = []
    # blanks separate the fields of a line
    stem = re.sub(r"\s", lambda blank: f"%{ord(blank[0]):02x}", name)
    for k, found in enumerate(paste_detections(prediction, size)):
        if found.crop is None or not found.crop.any():
            continue
        mask = f"{MASKS}/{stem}_{k}.png"
        write_atomically(folder / mask, mask_png(found.crop, found.corner, size))
        # nine digits restore each float32 exactly
        lines.append(f"{mask} {labels[found.category]} {found.score:.9g}\n")
    write_atomically(folder / f"{name}.txt", os.fsencode("".join(lines)))


@register("format", "raw")
class RawWriter(OutputFormat[ImageResult]):
    """The outputs of the network: `<name>.pth.tar`, a dict of tensors in pixels of its input.

    sem_pred `H x W` uint8 classes, bbx_pred `K x 4`, cls_pred `K` int64 (0 is the first thing), obj_pred `K` scores,
    msk_pred `K x 28 x 28` logits, of queries `K x 112 x 112` (docs/contract.md, section 1 "Commands"); maps of custom
    heads under their names, `H x W` or `channels x H x W`. For detection and instance segmentation without sem_pred;
    msk_pred is None without masks, and all are None where nothing was found, as in the original's files.
    """

    kinds = ("panoptic", "instance_seg", "detection")
    all_classes = True
    of_torch = True
    file = "{}.pth.tar"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Write the tensors."""
        import torch  # the other formats do without

        p = prediction.copy()
        arrays: dict[str, Any] = {"bbx_pred": p.boxes, "cls_pred": p.classes, "obj_pred": p.scores}
        arrays["msk_pred"] = p.mask_logits
        if isinstance(result, PanopticResult):
            arrays = {"sem_pred": p.semantic} | arrays
        elif not len(p.scores):
            arrays = dict.fromkeys(arrays)
        arrays |= p.maps
        content = {name: None if a is None else torch.from_numpy(a) for name, a in arrays.items()}
        buffer = BytesIO()
        torch.save(content, buffer)
        write_atomically(self.paths(source)[0], buffer.getvalue())


class MapWriter(OutputFormat[ImageResult]):
    """A map at the size of the image: `<name>_<map>.png`, grey, 8 or 16 bits, or RGB of a map of three channels.

    A map that a PNG cannot hold is `<name>_<map>.npy`, the values as float32 `channels x H x W`.
    """

    def __init__(self, out: Path, metadata: Metadata, name: str, spec: MapFormat) -> None:
        super().__init__(out, metadata)
        self.name, self.spec = name, spec
        self.file = f"{{}}_{name}{spec.ending}"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Resize and write the map."""
        content = encode_map(prediction.maps[self.name], self.spec, result.size)
        write_atomically(self.paths(source)[0], content)
