"""Small networks for export, and what the eager network computes for a padded picture."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from seamseg.contrib.classification.network import Classifier
from seamseg.contrib.deploy.network import ExportNet, export_net
from seamseg.contrib.exported.package import _stated
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.models.build import build_network
from seamseg.models.folding import fold_abn
from seamseg.models.panoptic import PanopticNet
from seamseg.models.semantic import class_map_prediction
from seamseg.ops.norm import InPlaceABN
from seamseg.ops.upsample import upsample_fusion
from seamseg.structures import Features
from support.narrow_backbones import build_narrow
from support.networks import randomise, tiny_config
from support.small_models import semantic_net

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
SIZE = (128, 160)
DETECTORS = ("panoptic", "instance_seg", "detection")
TOLERANCES = {"boxes": 0.01, "scores": 1e-4, "mask_logits": 1e-3, "probability": 1}
"""Largest differences of an exported network's outputs; others must be equal."""


def detector(kind: str = "panoptic", *overrides: str) -> PanopticNet:
    """A small network with random weights and statistics, folded, that finds things of several classes."""
    torch.manual_seed(0)
    net = build_network(tiny_config(kind, overrides=overrides), 2, 3).eval()
    randomise(net)
    nn.init.normal_(net.roi_head.roi_cls.weight, std=1)
    return fold_abn(net)


def read_package_metadata(path: Path) -> ExportedMetadata:
    return ExportedMetadata.from_json(_stated(path)[METADATA_KEY], str(path))


def classifier() -> Classifier:
    torch.manual_seed(0)
    body = build_narrow("resnet50", InPlaceABN, classes=7, keep_outputs=False).eval()
    randomise(body)
    return Classifier(body)


def exported_net(kind: str, standard_ops: bool = False, part: str = "all") -> ExportNet:
    """The module for export of a small network of a kind, classification included."""
    if kind == "classification":
        return export_net(fold_abn(classifier()), MEAN, STD)
    net = fold_abn(semantic_net()) if kind == "semantic" else detector(kind)
    return export_net(net, MEAN, STD, part, standard_ops)


def picture(size: tuple[int, int] = SIZE, valid: tuple[int, int] = (101, 155)) -> tuple[Tensor, Tensor]:
    """A picture of noise and its valid size; the padding is noise, too, which must not matter."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=generator), torch.tensor(valid)


@torch.no_grad()
def eager(
    net: ExportNet, image: Tensor, size: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> dict[str, Tensor]:
    """What the eager network computes for a padded picture: only the rows that exist, only the valid pixels."""
    height, width = size.tolist()
    pixels = image[:, :, :height, :width].float() / 255
    padded = torch.zeros(image.shape)
    padded[:, :, :height, :width] = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    padded = padded.contiguous(memory_format=torch.channels_last)
    if not isinstance(net.net, PanopticNet):
        maps = upsample_fusion([net.net.dense(padded)[0].float()], (int(image.shape[2]), int(image.shape[3])))
        found = class_map_prediction(*(values[:height, :width] for values in maps)).on_cpu()
        return {"classmap": torch.as_tensor(found.semantic), "probability": torch.as_tensor(found.maps["probability"])}
    return _detections(net.net, padded, (height, width))


def _detections(net: PanopticNet, padded: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
    features = Features(net.body(padded), (int(padded.shape[2]), int(padded.shape[3])), [size])
    anchors, obj_logits, bbx_logits = net.score_anchors(features)
    proposals = net.options.proposals(obj_logits, bbx_logits, anchors, [size], training=False)
    boxes, classes, scores = net.options.selector(*net.score_proposals(features, proposals, [size])[0])
    found = {"boxes": boxes, "classes": classes, "scores": scores, "count": torch.tensor(len(boxes))}
    mask, semantic = net.mask(features, [boxes], [classes])[0], net.segment(features)[0]
    if mask is not None:
        found["mask_logits"] = mask
    if semantic is not None:
        found["classmap"] = semantic.to(torch.uint8)
    return found


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], exact: bool = False) -> None:
    """The outputs of an exported network are those of the eager one, and rows that do not exist are 0."""
    assert found.keys() == wanted.keys()
    count = int(found["count"]) if "count" in found else 0
    for name, values in found.items():
        rows = values
        if name in ("boxes", "classes", "scores", "mask_logits"):
            rows = values[:count]
            assert not values[count:].any(), f"{name}: padding is 0"
        elif name in ("classmap", "probability"):
            rows = values[: wanted[name].shape[0], : wanted[name].shape[1]]
        assert rows.dtype == wanted[name].dtype, name
        assert rows.shape == wanted[name].shape, name
        # versions of torch compute a softmax by other operators when it is exported
        tolerance = (1e-6 if name == "scores" else 0) if exact else TOLERANCES.get(name, 0)
        difference = (rows.double() - wanted[name].double()).abs()
        if name == "classmap":
            assert (difference == 0).double().mean() >= (1 if exact else 0.9999)
        elif difference.numel():
            assert difference.max() <= tolerance, f"{name}: {difference.max()}"
