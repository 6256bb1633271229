"""The formats of semantic networks: class maps with and without colours, probabilities, overlay."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.inference.semantic import SemanticMap
from seamseg.panoptic_map import class_map_result
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Writer
from seamseg.predict.writers.images import OVERLAY_QUALITY
from seamseg.predictions import Prediction
from seamseg.utils.files import write_atomically
from seamseg.visualize import draw_overlay, padded_palette


class SemanticWriter(Writer[SemanticMap]):
    """Base of the formats with one image a photo; `ending` follows the name of the photo."""

    needs_photo = False
    ending = ".png"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self.palette = metadata.palette

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name><ending>`."""
        return [self.out / f"{source.name}{self.ending}"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: SemanticMap) -> None:
        """Write the image."""
        buffer = BytesIO()
        if self.ending == ".jpg":
            self.image(rgb, result).save(buffer, "JPEG", quality=OVERLAY_QUALITY)
        else:
            self.image(rgb, result).save(buffer, "PNG", compress_type=zlib.Z_RLE)
        write_atomically(self.paths(source)[0], buffer.getvalue())

    def image(self, rgb: np.ndarray | None, result: SemanticMap) -> Image.Image:
        """Return the image of a result."""
        raise NotImplementedError


class LabelsWriter(SemanticWriter):
    """The class of each pixel as an image with a palette: indices with the colours of the classes, black from there."""

    member = "labels.png"

    def image(self, rgb: np.ndarray | None, result: SemanticMap) -> Image.Image:
        """See :class:`SemanticWriter`."""
        image = Image.fromarray(result.classes)
        # red, green, blue of the first colour, then of the next
        image.putpalette(padded_palette(self.palette).tobytes(), "RGB")
        return image


class IdsWriter(SemanticWriter):
    """The class of each pixel as a greyscale image, under the name of :class:`LabelsWriter`."""

    member = "ids.png"

    def image(self, rgb: np.ndarray | None, result: SemanticMap) -> Image.Image:
        """See :class:`SemanticWriter`."""
        return Image.fromarray(result.classes)


class ProbabilitiesWriter(SemanticWriter):
    """The probability of the class of each pixel as a greyscale image: 255 times the probability, rounded down."""

    member = "prob.png"
    ending = "_prob.png"

    def image(self, rgb: np.ndarray | None, result: SemanticMap) -> Image.Image:
        """See :class:`SemanticWriter`."""
        assert result.probability is not None
        return Image.fromarray(result.probability)


class SemanticOverlayWriter(SemanticWriter):
    """The photo blended equally with the colours of its classes."""

    needs_photo = True
    member = "overlay.jpg"
    ending = ".jpg"

    def image(self, rgb: np.ndarray | None, result: SemanticMap) -> Image.Image:
        """See :class:`SemanticWriter`."""
        assert rgb is not None
        return Image.fromarray(draw_overlay(rgb, class_map_result(result.classes), self.palette))
