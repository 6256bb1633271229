"""Pictures to look at: the photo with the colours of its segments."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Records
from seamseg.structures import Prediction
from seamseg.utils.files import write_atomically
from seamseg.visualize.overlay import draw_overlay

JPEG_QUALITY = 92


class OverlayWriter:
    """The photo blended half and half with the colours of its segments, and their contours: `<name>.jpg`."""

    needs_photo = True
    member = "overlay.jpg"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self.metadata = metadata

    def paths(self, source: Source) -> list[Path]:
        """`OUT/<name>.jpg`"""
        return [self.out / f"{source.name}.jpg"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Draw and write it."""
        assert rgb is not None
        picture = draw_overlay(rgb, result, self.metadata.palette, self.metadata.categories)
        buffer = BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY)
        write_atomically(self.paths(source)[0], buffer.getvalue())

    def finals(self) -> list[Path]:
        """None"""
        return []

    def finish(self, records: Records) -> None:
        """Nothing is left to do."""
