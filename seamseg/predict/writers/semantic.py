"""The formats of semantic networks: class maps with and without colours, probabilities, overlay."""

from __future__ import annotations

import numpy as np
from PIL import Image

from seamseg.inference.semantic import SemanticMap
from seamseg.predict.writers.images import ImageWriter
from seamseg.predictions import ArrayPrediction
from seamseg.visualize import padded_palette


class LabelsWriter(ImageWriter[SemanticMap]):
    """The class of each pixel as an image with a palette: indices with the colours of the classes, black from there."""

    needs_photo = False
    member = "labels.png"
    ending = ".png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predict.writers.images.ImageWriter`."""
        image = Image.fromarray(result.classes)
        # red, green, blue of the first colour, then of the next
        image.putpalette(padded_palette(self.metadata.palette).tobytes(), "RGB")
        return image


class IdsWriter(ImageWriter[SemanticMap]):
    """The class of each pixel as a greyscale image, under the name of :class:`LabelsWriter`."""

    needs_photo = False
    member = "ids.png"
    ending = ".png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predict.writers.images.ImageWriter`."""
        return Image.fromarray(result.classes)


class ProbabilitiesWriter(ImageWriter[SemanticMap]):
    """The probability of the class of each pixel as a greyscale image: 255 times the probability, rounded down."""

    needs_photo = False
    member = "prob.png"
    ending = "_prob.png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predict.writers.images.ImageWriter`."""
        assert result.probability is not None
        return Image.fromarray(result.probability)
