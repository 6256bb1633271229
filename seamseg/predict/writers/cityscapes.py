"""What the three benchmarks of Cityscapes take."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.formats.cityscapes.layout import VOID_LABEL, frame_name, with_label_ids
from seamseg.formats.coco_writer import CocoPanopticWriter
from seamseg.formats.label_png import label_map, write_grey_png
from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Record, Records
from seamseg.predict.writers.coco import COCO_JSON
from seamseg.predict.writers.instance_files import write_detections
from seamseg.structures import Prediction


class CityscapesWriter:
    """`OUT/cityscapes/`: the panoptic, pixel-level and instance-level results, each a folder of its own.

    `panoptic.json` and `panoptic/<frame>.png` are COCO's format with label ids as `category_id`;
    `pixel/<frame>.png` holds the label id of each pixel of the panoptic map (0 void; things that no detection explains
    have their label here, while they are void in `panoptic/`); `instance/<frame>.txt` and `instance/masks/` hold the
    detections before the fusion. `<frame>` is the name of the photo without folders and `_leftImg8bit`.

    Raises
    ------
    InputError
        if the model knows a class that Cityscapes lacks
    """

    needs_photo = False
    member = None

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out / "cityscapes"
        self._classes = with_label_ids(metadata, "the model")
        self._panoptic = CocoPanopticWriter(self.out / COCO_JSON, self._classes)

    def paths(self, source: Source) -> list[Path]:
        """`panoptic/<frame>.png`, `pixel/<frame>.png` and `instance/<frame>.txt`"""
        frame = frame_name(source.name)
        return [
            self._panoptic.folder / f"{frame}.png",
            self.out / "pixel" / f"{frame}.png",
            self.out / "instance" / f"{frame}.txt",
        ]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> Record:
        """Write the results of a photo and return its segments."""
        frame, labels = frame_name(source.name), self._classes.original_ids
        record = self._panoptic.write(frame, result, source.relative)
        pixels = label_map(result.id_map, result.segments, labels, VOID_LABEL)
        write_grey_png(self.out / "pixel" / f"{frame}.png", pixels)
        things = labels[self._classes.num_stuff :]
        write_detections(self.out / "instance", frame, prediction, result.size, things)
        return record

    def finals(self) -> list[Path]:
        """The JSON"""
        return [self._panoptic.json_path]

    def finish(self, records: Records) -> None:
        """Write the JSON."""
        self._panoptic.write_json_of(records)
