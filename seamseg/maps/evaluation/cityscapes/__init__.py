"""The protocol of the Cityscapes benchmark: pixel level, instance level and panoptic, equal to the official tools."""

from seamseg.maps.evaluation.cityscapes.evaluate import evaluate_cityscapes
from seamseg.maps.evaluation.cityscapes.official import CityscapesScores
from seamseg.maps.formats.cityscapes.layout import find_frames

__all__ = ["CityscapesScores", "evaluate_cityscapes", "find_frames"]
