"""The COCO panoptic format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.data.metadata import Metadata
from seamseg.engine.distributed import World, gather_objects
from seamseg.engine.sources import Source
from seamseg.evaluation.coco_writer import CocoPanopticWriter
from seamseg.structures import PanopticResult, Prediction

COCO_JSON = "panoptic.json"


class CocoWriter:
    """The COCO panoptic format: `panoptic/<name>.png` and one `panoptic.json` for all, written by the main process."""

    needs_photo = False

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self._files = CocoPanopticWriter(out / COCO_JSON, metadata)

    def paths(self, source: Source) -> list[Path]:
        """`OUT/panoptic/<name>.png`"""
        return [self._files.folder / f"{source.name}.png"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write the PNG and remember the segments."""
        self._files.add(source.name, result, source.relative)

    def finish(self, world: World) -> None:
        """Bring the segments of all processes together and write the JSON."""
        write_json_of_all(self._files, world)


def write_json_of_all(files: CocoPanopticWriter, world: World) -> None:
    """Bring the segments of all processes together; the main process writes the JSON. All processes must call it."""
    parts = gather_objects(world, (files.images, files.annotations))
    if not world.is_main:
        return
    for part in parts[1:]:
        files.extend(*part)
    files.write_json()
