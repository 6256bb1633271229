"""Results of images, one class for each output of networks."""

from seamseg.inference.results.base import ImageResult
from seamseg.inference.results.classification import Classification
from seamseg.inference.results.detections import Detections
from seamseg.inference.results.panoptic import Panoptic
from seamseg.inference.results.semantic import SemanticMap

RESULTS: tuple[type[ImageResult], ...] = (Panoptic, Detections, SemanticMap, Classification)


def result_of(kind: str) -> type[ImageResult]:
    """Return the type of the results of a kind of network, as in `[general] kind`."""
    return next(result for result in RESULTS if kind in result.kinds)
