"""The COCO panoptic format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.formats.coco_writer import CocoPanopticWriter
from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Record, Records
from seamseg.structures import Prediction

COCO_JSON = "panoptic.json"


class CocoWriter:
    """The COCO panoptic format: `panoptic/<name>.png` and one `panoptic.json` for all, written by the main process."""

    needs_photo = False
    member = "panoptic.png"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self._files = CocoPanopticWriter(out / COCO_JSON, metadata)

    def paths(self, source: Source) -> list[Path]:
        """`OUT/panoptic/<name>.png`"""
        return [self._files.folder / f"{source.name}.png"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> Record:
        """Write the PNG and return the segments."""
        return self._files.write(source.name, result, source.relative)

    def finals(self) -> list[Path]:
        """The JSON"""
        return [self._files.json_path]

    def finish(self, records: Records) -> None:
        """Write the JSON."""
        self._files.write_json_of(records)
