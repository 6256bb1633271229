"""The formats of semantic networks: class maps with and without colours, probabilities, overlay."""

from __future__ import annotations

import numpy as np
from PIL import Image

from seamseg.config.components import register
from seamseg.inference.results.semantic import SemanticMap
from seamseg.predicting.writers.images import ImageFormat
from seamseg.predictions import ArrayPrediction
from seamseg.visualize import padded_palette


@register("format", "labels")
class LabelsWriter(ImageFormat[SemanticMap]):
    """The class of each pixel as an image with a palette: indices with the colours of the classes, black from there."""

    kinds = ("semantic",)
    needs_photo = False
    ending = ".png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predicting.writers.images.ImageFormat`."""
        image = Image.fromarray(result.classes)
        # red, green, blue of the first colour, then of the next
        image.putpalette(padded_palette(self.metadata.palette).tobytes(), "RGB")
        return image


@register("format", "ids")
class IdsWriter(ImageFormat[SemanticMap]):
    """The class of each pixel as a greyscale image, `<name>.png`, like that of `labels`."""

    kinds = ("semantic",)
    needs_photo = False
    ending = ".png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predicting.writers.images.ImageFormat`."""
        return Image.fromarray(result.classes)


@register("format", "probabilities")
class ProbabilitiesWriter(ImageFormat[SemanticMap]):
    """The probability of the class of each pixel as a greyscale image: 255 times the probability, rounded down."""

    kinds = ("semantic",)
    needs_photo = False
    ending = "_prob.png"
    probabilities = True

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`seamseg.predicting.writers.images.ImageFormat`."""
        assert result.probability is not None
        return Image.fromarray(result.probability)
