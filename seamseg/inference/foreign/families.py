"""The families of panoptic networks of transformers: what distinguishes them from each other; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Networks of one class of transformers.

    Attributes
    ----------
    model_class : name of the class
    multiple : the input is padded at the bottom and right to multiples of this, with zeros after the normalisation
    square : the input has the side `image_size` of its configuration: images are scaled to fit, and padded with black
    task : text whose tokens are a further input; empty for none
    class_logits, mask_logits : names of the outputs
    pixel_mask : which pixels are no padding has an effect; it is stated for a padded image
    annealed : buffer of the probabilities of masked attention by layer, which a training reduces to 0; empty for none
    export_problem : why a network cannot be exported; empty if it can
    """

    model_class: str
    multiple: int = 32
    square: bool = False
    task: str = ""
    class_logits: str = "class_queries_logits"
    mask_logits: str = "masks_queries_logits"
    pixel_mask: bool = False
    annealed: str = ""
    export_problem: str = ""


FAMILIES = {
    "mask2former": Family("Mask2FormerForUniversalSegmentation"),
    "maskformer": Family("MaskFormerForInstanceSegmentation"),
    "oneformer": Family(
        "OneFormerForUniversalSegmentation",
        task="the task is panoptic",
        export_problem="it has the operator _is_all_true, which ONNX lacks",
    ),
    "eomt": Family("EomtForUniversalSegmentation", square=True, annealed="attn_mask_probs"),
    "eomt_dinov3": Family("EomtDinov3ForUniversalSegmentation", square=True, annealed="attn_mask_probs"),
    "detr": Family("DetrForSegmentation", multiple=1, class_logits="logits", mask_logits="pred_masks", pixel_mask=True),
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
