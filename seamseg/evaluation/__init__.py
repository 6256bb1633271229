"""Panoptic quality with the official definition, mIoU, and the COCO panoptic format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.evaluation.coco_panoptic import read_coco_panoptic, read_id_png, write_id_png
from seamseg.evaluation.coco_writer import CocoPanopticWriter, dataset_to_coco_panoptic
from seamseg.evaluation.confusion import ConfusionMatrix
from seamseg.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.evaluation.evaluator import PanopticEvaluator, category_ids, class_infos
from seamseg.evaluation.matching import SegmentInfo
from seamseg.evaluation.panoptic_quality import PanopticQuality
from seamseg.evaluation.scores import APScores, ClassInfo, ClassScores, InstanceScores, PanopticScores
from seamseg.evaluation.segments import gt_segments_from_instances
from seamseg.evaluation.table import format_table

if TYPE_CHECKING:
    from seamseg.evaluation.coco_ap import InstanceEvaluator, average_precision

__all__ = [
    "APScores",
    "ClassInfo",
    "ClassScores",
    "CocoPanopticWriter",
    "ConfusionMatrix",
    "InstanceEvaluator",
    "InstanceScores",
    "PanopticEvaluator",
    "PanopticQuality",
    "PanopticScores",
    "SegmentInfo",
    "average_precision",
    "category_ids",
    "class_infos",
    "dataset_to_coco_panoptic",
    "evaluate_panoptic_json",
    "format_table",
    "gt_segments_from_instances",
    "read_coco_panoptic",
    "read_id_png",
    "write_id_png",
]


def __getattr__(name: str) -> Any:
    # average precision needs torch, which must not be loaded for scoring files
    if name not in ("InstanceEvaluator", "average_precision"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seamseg.evaluation import coco_ap

    return getattr(coco_ap, name)
