"""Evaluation: panoptic quality by the official definition, mIoU, average precision."""

from __future__ import annotations

from seamseg.maps.evaluation.coco_ap import average_precision, image_instances
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.evaluator import PanopticEvaluator
from seamseg.maps.evaluation.scores import APScores, ClassScores, InstanceScores, PanopticScores
from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.formats.metadata import category_ids, class_infos
from seamseg.maps.panoptic_map import ClassInfo, SegmentInfo

__all__ = [
    "APScores",
    "ClassInfo",
    "ClassScores",
    "ConfusionMatrix",
    "InstanceScores",
    "PanopticEvaluator",
    "PanopticScores",
    "SegmentInfo",
    "average_precision",
    "category_ids",
    "class_infos",
    "evaluate_panoptic_json",
    "gt_segments_from_instances",
    "image_instances",
]
