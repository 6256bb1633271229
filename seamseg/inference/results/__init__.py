"""Results of images, one class for each output of networks."""

from seamseg.inference.results.base import ImageResult
from seamseg.inference.results.detections import Detections
from seamseg.inference.results.panoptic import Panoptic
from seamseg.inference.results.semantic import SemanticMap

RESULTS: dict[str, type[ImageResult]] = {
    kind: result for result in (Panoptic, Detections, SemanticMap) for kind in result.kinds
}
"""The type of the results by the kind of network, as in `[general] kind`."""
