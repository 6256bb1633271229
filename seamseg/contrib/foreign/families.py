"""The families of panoptic networks of transformers: what distinguishes them from each other; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """Networks of one class of transformers, `model_class`.

    Attributes
    ----------
    multiple : an image is padded at the bottom and right to multiples of it, with zeros after the normalisation
    square : images are scaled to the side `image_size` of the configuration, and padded with black
    task : text whose tokens are a further input; empty for none
    pixel_mask : the network takes `pixel_mask`, `1 x H x W`, 1 for pixels that are not padding
    mask_annealing_buffer : buffer with the probability, for each layer, that its attention is masked; the training
        lowers it to 0. Empty if the network has none
    export_problem : why a network cannot be exported; empty if it can
    score_threshold, score_thresholds : threshold of the authors for the panoptic map, and others by data set
    """

    model_class: str
    multiple: int = 32
    square: bool = False
    task: str = ""
    class_logits: str = "class_queries_logits"
    mask_logits: str = "masks_queries_logits"
    pixel_mask: bool = False
    mask_annealing_buffer: str = ""
    export_problem: str = ""
    score_threshold: float = 0.8
    score_thresholds: Mapping[str, float] = field(default_factory=dict)

    def score_threshold_of(self, data_set: str) -> float:
        """Return the score threshold of the authors for a key of :data:`SIZES`, or another data set."""
        return self.score_thresholds.get(data_set, self.score_threshold)


FAMILIES = {
    "mask2former": Family("Mask2FormerForUniversalSegmentation"),
    "maskformer": Family("MaskFormerForInstanceSegmentation", score_thresholds={"ade20k": 0.7}),
    "oneformer": Family(
        "OneFormerForUniversalSegmentation",
        task="the task is panoptic",
        export_problem="it has the operator _is_all_true, which ONNX lacks",
    ),
    "eomt": Family("EomtForUniversalSegmentation", square=True, mask_annealing_buffer="attn_mask_probs"),
    "eomt_dinov3": Family("EomtDinov3ForUniversalSegmentation", square=True, mask_annealing_buffer="attn_mask_probs"),
    "detr": Family(
        "DetrForSegmentation",
        multiple=1,
        class_logits="logits",
        mask_logits="pred_masks",
        pixel_mask=True,
        score_threshold=0.85,
    ),
}
"""By `model_type` in `config.json`."""

SIZES = {
    "cityscapes": (1024, 2048),
    "vistas": (2048, 2048),
    "vistas_v2": (2048, 2048),
    "coco_panoptic": (800, 1333),
    "ade20k": (640, 2560),
}
"""Shortest side and limit of the longest side with which the authors evaluate, by data set."""

DEFAULT_SIZE = SIZES["coco_panoptic"]

OVERLAP_THRESHOLD = 0.8
"""Thresholds of MaskFormer, Mask2Former, OneFormer and EoMT; DETR's own merge has none."""
