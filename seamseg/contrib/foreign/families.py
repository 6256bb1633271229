"""Networks of other libraries, for a predictor: families of transformers, interface, settings as a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from seamseg.config import Config, config_from_string
from seamseg.inference.options import InferenceOptions
from seamseg.maps.predictions import InferenceNetwork
from seamseg.structures import Normalise


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


class ForeignNetwork(InferenceNetwork):
    """A network in evaluation mode, which is moved to a device and computes in `dtype`."""

    def __init__(self, net: nn.Module, normalise: Normalise, device: torch.device, dtype: torch.dtype) -> None:
        self.net = net.to(device)
        self.normalise = normalise
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.dtype = dtype
        self.precision = str(dtype).removeprefix("torch.")

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute without gradients, in the compute dtype."""
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, self.dtype != torch.float32):
            yield


def neutral_config(kind: str, keys: Mapping[str, object], name: str, options: InferenceOptions) -> Config:
    """Return a configuration with the settings, `section.key`, of a network of another library; its split is val."""
    options.check_overrides(("general", "dataloader"), f"has no effect on {name}, which is no network of seamseg")
    texts: dict[str, list[str]] = {}
    for key, value in {**keys, "dataloader.val_set": "val"}.items():
        section, _, option = key.partition(".")
        texts.setdefault(section, [f"[{section}]"]).append(f"{option} = {value}")
    ini = "\n".join(line for lines in texts.values() for line in lines)
    return config_from_string(ini, kind, name, options.overrides)
