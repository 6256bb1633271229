"""Profile of a prediction by stages, from the file of an image to the files of its result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seamseg.config import load_config
from seamseg.data.images import open_image
from seamseg.data.transforms import Normalise
from seamseg.formats.metadata import Metadata
from seamseg.fusion import download
from seamseg.inference.images import input_size, network_input
from seamseg.inference.network import TorchNetwork
from seamseg.inference.options import Thresholds
from seamseg.inference.predictor import Predictor
from seamseg.inference.result import Panoptic
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.models.panoptic import PanopticNet
from seamseg.models.panoptic_inference import Features, scoring_above
from seamseg.predict.source import Source
from seamseg.predict.writers import formats_of, make_writers
from seamseg.predictions import Prediction
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError
from seamseg.visualize.palette import distinct_colors

STAGES = ("decode", "resize", "body", "FPN", "RPN head", "NMS", "ROI", "mask", "semantic", "fusion", "encode")
"""In order; resize includes normalisation, NMS the selection of proposals, ROI the second NMS, encode the drawing."""

RANDOM_DETECTIONS = 100
"""Detections that are assigned to a network of random weights, which finds none."""


def random_predictor(
    device: torch.device, shortest_size: int, precision: str = "fp32", config: str = "vistas_r50", folded: bool = True
) -> Predictor[Panoptic]:
    """Return a predictor with random weights of a fixed seed and as many classes as Mapillary Vistas."""
    torch.manual_seed(0)
    options = load_config(config)
    metadata = Metadata(
        28, 37, [f"class {i}" for i in range(65)], [tuple(row) for row in distinct_colors(65).tolist()], list(range(65))
    )
    net = build_network(options, metadata.num_stuff, metadata.num_thing).eval()
    net = for_inference(net, device, precision) if folded else net
    loading = options.dataloader
    size = input_size(options, shortest_size, max(4 * shortest_size, loading.longest_max_size))
    network = TorchNetwork(net, Normalise(loading.rgb_mean, loading.rgb_std), device)
    return Predictor(network, metadata, size, Thresholds.of(options))


class StageProfile:
    """Runs a predictor on one image, stage by stage.

    Parameters
    ----------
    predictor : predictor to profile
    photo : file
    out : folder for the results, is made
    random_weights : use the first 1000 proposals, and :data:`RANDOM_DETECTIONS` of them as detections
    strong : number of these that score above .5
    every_mask : compute the masks of detections too weak for the panoptic map, too, which `predict` does not

    Raises
    ------
    InputError
        if the network has other stages
    """

    def __init__(
        self,
        predictor: Predictor[Any],
        photo: Path,
        out: Path,
        random_weights: bool,
        strong: int = RANDOM_DETECTIONS,
        every_mask: bool = False,
    ) -> None:
        network = predictor.network
        if not isinstance(network, TorchNetwork) or not isinstance(network.net, PanopticNet):
            raise InputError(f"a model of kind {predictor.kind} has other stages than those of the profile")
        self.predictor = predictor
        self.network = network
        self.net = network.net
        self.photo = photo
        self.out = out
        self.random_weights = random_weights
        self.strong = strong
        self.least_score = 0.0 if every_mask or predictor.kind != "panoptic" else predictor.thresholds.score_threshold
        self.formats = [name for name in ("overlay", "coco") if name in formats_of(predictor.kind)]
        self.counts: dict[str, int] = {}

    def run(self) -> dict[str, float]:
        """Return the seconds of each of :data:`STAGES`, and set `counts`: proposals, detections, segments."""
        p, net, seconds = self.predictor, self.net, dict.fromkeys(STAGES, 0.0)
        last = time.perf_counter()

        def mark(stage: str) -> None:
            nonlocal last
            if self.network.device.type == "cuda":
                torch.cuda.synchronize(self.network.device)
            now = time.perf_counter()
            seconds[stage], last = now - last, now

        with torch.inference_mode():
            source = open_image(self.photo)
            mark("decode")
            image = self.network.prepare(network_input(source, p.input_size))
            mark("resize")
            padded, sizes = PackedSequence([image]).as_padded()
            padded = padded.to(dtype=net.dtype, memory_format=net.memory_format)
            maps = net.body.backbone(padded)
            mark("body")
            levels = net.body.fpn([maps[name] for name in net.body.inputs])
            features = Features(levels, (int(padded.shape[-2]), int(padded.shape[-1])), sizes)
            mark("FPN")
            anchors, obj_logits, bbx_logits = net.score_anchors(features)
            mark("RPN head")
            if self.random_weights:
                bbx_logits = bbx_logits * 0.1
            proposals = net.options.proposals(obj_logits, bbx_logits, anchors, sizes, training=False)
            mark("NMS")
            boxes, classes, scores = net.detect(features, proposals)[0]
            mark("ROI")
            rows = proposals[0]
            if self.random_weights and rows is not None:
                boxes = rows[:RANDOM_DETECTIONS]
                classes = torch.arange(boxes.shape[0], device=boxes.device) % p.metadata.num_thing
                scores = torch.linspace(0.99, 0.6, boxes.shape[0], device=boxes.device)
                scores[self.strong :] -= 0.5
            self.counts = {"proposals": 0 if rows is None else len(rows), "detections": len(boxes)}
            boxes, classes, scores = scoring_above(self.least_score, [(boxes, classes, scores)])[0]
            masks = net.mask(features, [boxes], [classes])[0]
            mark("mask")
            semantic = net.segment(features)[0]
            mark("semantic")
            prediction = download(Prediction(boxes, classes, scores, masks, semantic, sizes[0]))
            result = p.result(prediction, (source.height, source.width))
            mark("fusion")
        photo = Source(self.photo, self.photo.stem, self.photo.name)
        rgb = np.asarray(source)
        for writer in make_writers(self.formats, self.out, p.metadata, p.kind):
            writer.write(photo, rgb, prediction, result)
        mark("encode")
        found = len(result.segments) if isinstance(result, Panoptic) else sum(result.counts().values())
        self.counts["segments"] = found
        return seconds
