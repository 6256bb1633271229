"""Results of images, one class for each output of networks."""

from seamseg.results.base import ImageResult, Thresholds, result_of
from seamseg.results.detections import Detections
from seamseg.results.panoptic import Panoptic
from seamseg.results.semantic import SemanticMap

__all__ = ["Detections", "ImageResult", "Panoptic", "SemanticMap", "Thresholds", "result_of"]
