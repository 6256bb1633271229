"""The layout of Mapillary Vistas, and what its evaluation takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.formats.coco_writer import CocoPanopticWriter
from seamseg.formats.label_png import instance_map, label_map, write_grey_png
from seamseg.formats.metadata import Metadata
from seamseg.formats.vistas import INSTANCES_PER_LABEL, photo_stem, vistas_labels, void_label, with_panoptic_ids
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Record, Records
from seamseg.predict.writers.coco import COCO_JSON
from seamseg.predict.writers.instance_files import write_detections
from seamseg.structures import Prediction


class VistasWriter:
    """`OUT/vistas/`: labels, instances and the panoptic map, with the original ids of the classes as labels.

    `labels/<name>.png` holds the label of each pixel of the panoptic map (8 bit, void is the label after the last);
    `instances/<name>.png` is the map as the data set has it, label * 256 + number (16 bit); `instances/<name>.txt` and
    `instances/masks/` hold the detections before the fusion, as the official evaluation reads them; `panoptic.json`
    and `panoptic/<name>.png` are COCO's format, `category_id` being label + 1. Things that no detection explains have
    their label in `labels/` and are void elsewhere.

    Raises
    ------
    InputError
        if the original ids are no labels
    """

    needs_photo = False
    member = None

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out / "vistas"
        self._labels = vistas_labels(metadata, "the model")
        self._void = void_label(self._labels)
        self._num_stuff = metadata.num_stuff
        self._panoptic = CocoPanopticWriter(self.out / COCO_JSON, with_panoptic_ids(metadata, self._labels))

    def paths(self, source: Source) -> list[Path]:
        """`panoptic/<name>.png`, `labels/<name>.png`, `instances/<name>.png` and `instances/<name>.txt`"""
        name = photo_stem(source.name)
        return [
            self._panoptic.folder / f"{name}.png",
            self.out / "labels" / f"{name}.png",
            self.out / "instances" / f"{name}.png",
            self.out / "instances" / f"{name}.txt",
        ]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> Record:
        """Write the results of a photo and return its segments."""
        name, labels = photo_stem(source.name), self._labels
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

    def finals(self) -> list[Path]:
        """The JSON"""
        return [self._panoptic.json_path]

    def finish(self, records: Records) -> None:
        """Write the JSON."""
        self._panoptic.write_json_of(records)
