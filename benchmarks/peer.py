"""The peer of throughput.py and train_step.py: Mask R-CNN of torchvision with a semantic head on its pyramid.

`maskrcnn_resnet50_fpn` is used as it is; the head is that of the original in plain torch (plain.py), whose large
average pool goes along one axis after the other. Input size, classes, numbers of proposals (for torchvision those of a
level before NMS) and samples, and frozen stages are those of a configuration of ours. No kernel of the package runs but
those that put stuff into the map on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from plain import PlainSemanticHead, plain_semantic_loss, torch_poolings
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config import Config
from seamseg.fusion import FusedMap, to_result
from seamseg.idmaps.segments import count_classes, fill_free
from seamseg.inference.predictor import Predictor
from seamseg.inference.result import Panoptic
from seamseg.inplace_abn import to_batchnorm
from seamseg.models.build import build_network
from seamseg.models.heads.semantic import semantic_target
from seamseg.panoptic_map import VOID
from seamseg.predictions import ArrayPrediction, Prediction
from seamseg.structures import Batch


def maskrcnn(size: tuple[int, int], classes: int = 91, find_things: bool = True, **options: Any) -> nn.Module:
    """Return Mask R-CNN of torchvision with random weights.

    Parameters
    ----------
    size : shortest and longest side of its input in pixels
    classes : classes with that of the background
    find_things : give the class layer a bias for one class, so that it finds 100 things
    options : more options of torchvision
    """
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.manual_seed(0)
    sides = {"min_size": size[0], "max_size": size[1]}
    model: Any = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=classes, rpn_pre_nms_top_n_test=6000, **sides, **options
    ).eval()
    with torch.no_grad():
        if find_things:
            model.roi_heads.box_predictor.cls_score.weight.mul_(0.01)
            model.roi_heads.box_predictor.cls_score.bias[1] = 8.0
            model.roi_heads.box_predictor.bbox_pred.weight.mul_(0.01)
    return model


class PanopticPeer(nn.Module):
    """Mask R-CNN and a semantic head.

    Parameters
    ----------
    config : configuration of ours
    num_stuff, num_thing : classes
    size : `(height, width)` of the input
    find_things : see :func:`maskrcnn`
    """

    def __init__(
        self, config: Config, num_stuff: int, num_thing: int, size: tuple[int, int], find_things: bool = False
    ) -> None:
        super().__init__()
        rpn, roi = config.rpn, config.roi
        detector: Any = maskrcnn(
            (min(size), max(size)),
            num_thing + 1,
            find_things,
            rpn_pre_nms_top_n_train=rpn.num_pre_nms_train,
            rpn_post_nms_top_n_train=rpn.num_post_nms_train,
            rpn_post_nms_top_n_test=rpn.num_post_nms_val,
            rpn_batch_size_per_image=rpn.num_samples,
            box_batch_size_per_image=roi.num_samples,
            box_positive_fraction=roi.pos_ratio,
            box_detections_per_img=roi.max_predictions,
        )
        body = detector.backbone.body
        for stage in (body.conv1, body.layer1, body.layer2, body.layer3, body.layer4)[: config.body.num_frozen]:
            stage.requires_grad_(False)
        ours: Any = torch_poolings(to_batchnorm(build_network(config, num_stuff, num_thing)))
        self.head = PlainSemanticHead(ours.sem_head, separated=True)
        self.ohem = config.sem.ohem or 1.0
        self._levels: list[Tensor] = []
        detector.backbone.register_forward_hook(self._keep)
        self.detector = detector

    def _keep(self, backbone: nn.Module, given: Any, levels: Mapping[str, Tensor]) -> None:
        self._levels = list(levels.values())[: self.head.head.num_levels]

    def _logits(self) -> Tensor:
        logits: Tensor = self.head(self._levels)
        self._levels = []
        return logits

    def loss(self, images: list[Tensor], targets: list[dict[str, Tensor]], classes: list[Tensor]) -> Tensor:
        """Return the sum of all losses.

        Parameters
        ----------
        images : `3 x H x W` each
        targets : of torchvision, see :func:`targets_of`
        classes : class maps, int64 `H x W`
        """
        losses = list(self.detector(images, targets).values())
        logits = self._logits()
        padded = logits.shape[-2] * 4, logits.shape[-1] * 4
        maps = [plain_semantic_loss(x.float(), padded, c, self.ohem) for x, c in zip(logits, classes)]
        return torch.stack([*losses, torch.stack(maps).mean()]).sum()

    def forward(self, image: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the detections of torchvision, their masks on the whole image, and the class map of `3 x H x W`."""
        found = self.detector([image])[0]
        logits = functional.interpolate(self._logits(), scale_factor=4, mode="bilinear", align_corners=False)
        return found, logits[0, :, : image.shape[1], : image.shape[2]].argmax(0)


def peer_config(experiment: str) -> Config:
    """Return an experiment with the pyramid of torchvision, which has 256 channels."""
    from seamseg.config import load_config

    return load_config(experiment, overrides=("fpn.out_channels=256",))


def targets_of(batch: Batch, num_stuff: int) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """Return the things of each image as torchvision takes them, and the class maps."""
    things, maps = [], []
    for masks, categories, boxes in zip(batch.masks, batch.categories, batch.boxes):
        assert masks is not None and categories is not None and boxes is not None
        ids = [i for i, c in enumerate(categories.tolist()) if num_stuff <= c != VOID and boxes[i, 0] >= 0]
        chosen = torch.tensor(ids)
        pixels = (masks == chosen[:, None, None]).to(torch.uint8)
        labels = categories[chosen] - num_stuff + 1
        things.append({"boxes": boxes[chosen][:, [1, 0, 3, 2]], "labels": labels, "masks": pixels})
        maps.append(semantic_target(masks, categories))
    return things, maps


class PeerNetwork:
    """Runs a :class:`PanopticPeer`, see :class:`seamseg.inference.predictor.InferenceNetwork`."""

    kind, uses_torch, averaged, nms_threshold, tiles_problem = "panoptic", True, False, None, None
    map_formats: Mapping[str, Any] = {}

    def __init__(self, net: PanopticPeer, device: torch.device, precision: str) -> None:
        self.net = net.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self.device, self.on_gpu, self.precision = device, device.type != "cpu", precision

    def run(self, images: Sequence[np.ndarray]) -> list[ArrayPrediction]:
        """Return detections, class map and the ids of the things, the best on top, in the map `ids`."""
        return [self._run(image) for image in images]

    @torch.inference_mode()
    def _run(self, image: np.ndarray) -> ArrayPrediction:
        pixels = torch.from_numpy(image.copy()).to(self.device, non_blocking=True).permute(2, 0, 1).float().div_(255)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            found, classes = self.net(pixels)
        ids = torch.zeros_like(classes, dtype=torch.int32)
        if len(found["masks"]):
            there = found["masks"][:, 0] > 0.5
            # the first of equals: the detection of the best score
            ids = torch.where(there.any(0), there.to(torch.uint8).argmax(0).int() + 1, 0)
        boxes = found["boxes"][:, [1, 0, 3, 2]]
        size = int(image.shape[0]), int(image.shape[1])
        given = boxes, found["labels"] - 1, found["scores"], None, classes, size
        return Prediction(*given, maps={"ids": ids}).on_cpu()


class PeerPredictor(Predictor[Panoptic]):
    """A predictor with a :class:`PeerNetwork`."""

    def result(self, prediction: ArrayPrediction, native_size: tuple[int, int]) -> Panoptic:
        """Put stuff where there is no thing, see the base class."""
        ids, semantic, num_stuff = prediction.maps["ids"].astype(np.int32), prediction.semantic, self.metadata.num_stuff
        assert semantic is not None
        categories = [VOID, *(prediction.classes + num_stuff).tolist()]
        scores = [0.0, *prediction.scores.tolist()]
        areas = count_classes(semantic, ids)
        id_of_class = np.zeros(len(areas), np.int32)
        for category in np.flatnonzero(areas >= self.thresholds.min_stuff_area).tolist():
            id_of_class[category] = len(categories)
            categories.append(category)
            scores.append(1.0)
        fill_free(ids, semantic, id_of_class)
        crowds = [i >= len(prediction.classes) + 1 and c >= num_stuff for i, c in enumerate(categories)]
        fused = FusedMap(ids, categories, scores, crowds)
        return Panoptic.of(to_result(fused, native_size, num_stuff), self.metadata)


def peer_predictor(ours: Predictor[Any], size: tuple[int, int], precision: str, experiment: str) -> PeerPredictor:
    """Return a predictor of the peer with the classes and the input size of one of ours."""
    metadata = ours.metadata
    net = PanopticPeer(peer_config(experiment), metadata.num_stuff, metadata.num_thing, size, find_things=True)
    network = PeerNetwork(net, torch.device(ours.network.device), precision)
    return PeerPredictor(network, metadata, ours.input_size, ours.thresholds)
