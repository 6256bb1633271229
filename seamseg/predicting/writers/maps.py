"""The output maps of custom heads as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.formats.metadata import Metadata
from seamseg.inference.results.base import ImageResult
from seamseg.predicting.source import Source
from seamseg.predicting.writers.base import OutputFormat
from seamseg.predictions import ArrayPrediction, MapFormat
from seamseg.utils.files import write_atomically
from seamseg.visualize.maps import encode_map


class MapWriter(OutputFormat[ImageResult]):
    """A map at the size of the image: `<name>_<map>.png`, grey, 8 or 16 bits, or RGB of a map of three channels.

    A map that a PNG cannot hold is `<name>_<map>.npy`, the values as float32 `channels x H x W`.

    Parameters
    ----------
    out, metadata : see :class:`seamseg.predicting.writers.base.OutputFormat`
    name, spec : name and format of the map
    """

    def __init__(self, out: Path, metadata: Metadata, name: str, spec: MapFormat) -> None:
        super().__init__(out, metadata)
        self.name, self.spec = name, spec

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>_<map>.png`, or `.npy`."""
        return [self.out / f"{source.name}_{self.name}{self.spec.ending}"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Resize and write the map."""
        content = encode_map(prediction.maps[self.name], self.spec, result.size)
        write_atomically(self.paths(source)[0], content)
