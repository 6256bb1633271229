"""Whole networks on the CPU, stage by stage: inference of vistas_r50, a training step of cityscapes_r50.

    python benchmarks/network.py [--rounds 3] [--sides 512 1024] [--plain] [inference] [training]

Weights are random with a fixed seed, the picture is a toy street enlarged, and the heads are given what a trained
network would give them: 1000 proposals, 100 detections. `original` are the times of the original implementation on this
class of machine (2 cores, no GPU), measured with weights of their own. `--plain` runs without the compiled operators.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ORIGINAL = {
    "inference 512": {"body": 0.97, "rpn": 0.47, "roi": 3.66, "semantic": 6.26, "fusion": 0.1},
    "inference 1024": {"body": 6.7, "rpn": 1.22, "roi": 2.85, "semantic": 53.8, "fusion": 0.3},
    "training 512": {"forward": 19.4, "backward": 23.2, "kept MiB": 1519.6},
}
"""Seconds of the original; a training step took 30 s in all when the machine was quiet."""
CONFIGS = Path(__file__).parents[1] / "configs"

Stages = dict[str, float]


class Watch:
    """Seconds of each stage of one run."""

    def __init__(self) -> None:
        self.stages: Stages = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        """The stage that ends here."""
        now = time.perf_counter()
        self.stages[stage] = now - self._last
        self._last = now


def inference(side: int) -> Callable[[], Stages]:
    """Make a network and a picture; the result runs it once and gives the seconds of its stages."""
    import torch
    from torch.nn import functional

    from seamseg.config import load_config
    from seamseg.fusion import fuse, to_result
    from seamseg.models.build import build_network
    from seamseg.ops.roi_sampling import roi_sampling  # noqa: F401  loads the operators
    from seamseg.structures import PackedSequence, Prediction

    torch.manual_seed(0)
    config = load_config(CONFIGS / "vistas_r50.ini")
    network = build_network(config, 28, 37).eval()
    image = functional.interpolate(torch.randn(1, 3, 16, 24), size=(side, side * 767 // 512), mode="bicubic")[0]

    @torch.no_grad()
    def run() -> Stages:
        watch = Watch()
        features = network.encode(PackedSequence([image]))
        watch.stop("body")
        anchors, obj_logits, bbx_logits = network.score_anchors(features)
        proposals = network.proposals(obj_logits, bbx_logits * 0.1, anchors, features.valid_sizes, training=False)
        watch.stop("rpn")
        network.detect(features, proposals)
        boxes = proposals[0][:100]
        classes = torch.arange(boxes.shape[0]) % 37
        masks = network.mask(features, [boxes], [classes])[0]
        watch.stop("roi")
        semantic = network.segment(features)[0]
        watch.stop("semantic")
        scores = torch.linspace(0.99, 0.6, boxes.shape[0])
        prediction = Prediction(boxes, classes, scores, masks, semantic, features.valid_sizes[0])
        to_result(fuse(prediction, 28), features.valid_sizes[0], 28)
        watch.stop("fusion")
        return watch.stages

    return run


def training(side: int) -> Callable[[], Stages]:
    """Make a network and a batch of one picture; the result takes one step without an optimiser."""
    import torch
    from torch.nn import functional

    from seamseg.config import load_config
    from seamseg.models.build import build_training_module
    from seamseg.structures import Batch, PackedSequence

    torch.manual_seed(0)
    config = load_config(CONFIGS / "cityscapes_r50.ini")
    module = build_training_module(config, 11, 8).train()
    height, width = side, 2 * side
    image = functional.interpolate(torch.randn(1, 3, 16, 32), size=(height, width), mode="bicubic")[0]
    masks = torch.zeros(1, height, width, dtype=torch.long)
    categories = [255]
    for i in range(11):
        masks[0, height * i // 11 :] = i + 1
        categories.append(i)
    boxes = []
    for i in range(20):
        y0, x0 = height * (i % 5) // 5, width * (i // 5) // 4
        y1, x1 = y0 + height // 8 + 4 * i, x0 + width // 10 + 3 * i
        masks[0, y0:y1, x0:x1] = len(categories)
        boxes.append((len(categories), 11 + i % 8))
        categories.append(11 + i % 8)
    batch = Batch.collate(image, masks, torch.tensor(categories))
    parameters = [p for p in module.parameters() if p.requires_grad]
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}

    def run() -> Stages:
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        watch = Watch()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            losses = module(batch)
            total = torch.stack(list(losses.values())).sum()
        watch.stop("forward")
        torch.autograd.grad(total, parameters, allow_unused=True)
        watch.stop("backward")
        return {**watch.stages, "kept MiB": sum(kept.values()) / 2**20}

    return run
