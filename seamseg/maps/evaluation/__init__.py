"""Evaluation: panoptic quality by the official definition, mIoU, average precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.evaluator import PanopticEvaluator
from seamseg.maps.evaluation.scores import APScores, ClassScores, InstanceScores, PanopticScores
from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.formats.metadata import category_ids, class_infos
from seamseg.maps.panoptic_map import ClassInfo, SegmentInfo

if TYPE_CHECKING:
    from seamseg.maps.evaluation.coco_ap import average_precision, image_instances

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


def __getattr__(name: str) -> Any:
    # average precision needs torch, which evaluating files must not load
    if name not in ("average_precision", "image_instances"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seamseg.maps.evaluation import coco_ap

    return getattr(coco_ap, name)
