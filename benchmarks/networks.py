"""Networks of random weights for the scripts of this folder: ours, busy as a trained one, and Mask R-CNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from seamseg.config import load_config
from seamseg.inference.network import TorchNetwork
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.visualize.overlay import distinct_colors
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.models.panoptic import PanopticNet
from seamseg.results import Panoptic
from seamseg.structures import Normalise

DETECTIONS = 100
"""Things that a busy network finds on every image."""


def random_predictor(
    device: torch.device,
    shortest_size: int | None = None,
    precision: str = "fp32",
    config: str = "vistas_r50",
    folded: bool = True,
    overrides: tuple[str, ...] = (),
) -> Predictor[Panoptic]:
    """Return a predictor with weights of a fixed seed and as many classes as Mapillary Vistas."""
    torch.manual_seed(0)
    options = load_config(config, overrides=overrides)
    metadata = Metadata(
        28, 37, [f"class {i}" for i in range(65)], [tuple(row) for row in distinct_colors(65).tolist()], list(range(65))
    )
    net = build_network(options, metadata.num_stuff, metadata.num_thing).eval()
    net = for_inference(net, device, precision) if folded else net
    loading = options.dataloader
    longest = None if shortest_size is None else max(4 * shortest_size, loading.longest_max_size)
    network = TorchNetwork(net, Normalise(loading.rgb_mean, loading.rgb_std, device), device)
    given = InferenceOptions(shortest_size=shortest_size, longest_max_size=longest)
    return Predictor(network, metadata, given.input_size(options), given.thresholds(options))


def busy(net: PanopticNet) -> PanopticNet:
    """Return the network, which finds :data:`DETECTIONS` things of made-up scores on every image.

    They are the first of its proposals, near their anchors; those that it would select itself are computed, too.
    """
    options = net.options
    chosen, select = options.proposals, options.selector

    class Proposals(type(chosen)):  # type: ignore[misc]
        def padded(self, obj_logits: Any, bbx_logits: Any, *rest: Any, **given: Any) -> Any:
            return super().padded(obj_logits, bbx_logits * 0.1, *rest, **given)

    class Selector(type(select)):  # type: ignore[misc]
        def __call__(self, boxes: Any, scores: Any) -> Any:
            super().__call__(boxes, scores)
            return made_up(boxes, scores)

        def padded(self, boxes: Any, scores: Any) -> Any:
            found = super().padded(boxes, scores)[-1]
            rows = made_up(boxes.nan_to_num(), scores)  # NaN are proposals that do not exist
            return *rows, torch.stack((torch.full_like(found[0], rows[0].shape[0]), torch.ones_like(found[1])))

    def made_up(boxes: Any, scores: Any) -> Any:
        rows = boxes[:DETECTIONS, 0]
        classes = torch.arange(rows.shape[0], device=rows.device) % (scores.shape[1] - 1)
        return rows, classes, torch.linspace(0.99, 0.6, rows.shape[0], device=rows.device)

    return net.with_options(proposals=Proposals(chosen.config), selector=Selector(select.config))


def maskrcnn(shortest_size: int) -> nn.Module:
    """Return maskrcnn_resnet50_fpn of torchvision, with a bias for one class so that it finds 100 things."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.manual_seed(0)
    sides = {"min_size": shortest_size, "max_size": 4 * shortest_size}
    model: Any = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, rpn_pre_nms_top_n_test=6000, **sides).eval()
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.weight.mul_(0.01)
        model.roi_heads.box_predictor.cls_score.bias[1] = 8.0
        model.roi_heads.box_predictor.bbox_pred.weight.mul_(0.01)
    return model
