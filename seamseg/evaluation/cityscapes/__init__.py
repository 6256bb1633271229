"""The protocol of the Cityscapes benchmark: pixel level, instance level and panoptic, equal to the official tools."""

from seamseg.evaluation.cityscapes.evaluate import evaluate_cityscapes
from seamseg.evaluation.cityscapes.results import CLASSES, segments_from_pairs
from seamseg.evaluation.cityscapes.scores import (
    CityscapesScores,
    InstanceClassScores,
    InstanceLevelScores,
    LabelScores,
    PixelScores,
)
from seamseg.formats.cityscapes.layout import CityscapesFrame, find_frames

__all__ = [
    "CLASSES",
    "CityscapesFrame",
    "CityscapesScores",
    "InstanceClassScores",
    "InstanceLevelScores",
    "LabelScores",
    "PixelScores",
    "evaluate_cityscapes",
    "find_frames",
    "segments_from_pairs",
]
