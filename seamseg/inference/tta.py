"""Test-time augmentation: several views of each image, mirrored and at other sizes, merged to one prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.data.input_size import value_factor
from seamseg.inference.options import Augmentation
from seamseg.maps.predictions import Prediction
from seamseg.models.custom import mirrored_map, resized
from seamseg.models.panoptic import PanopticNet
from seamseg.models.semantic import SemanticNet, class_map_prediction
from seamseg.ops.nms import nms
from seamseg.ops.upsample import upsample_fusion
from seamseg.results import SemanticMap
from seamseg.structures import PackedSequence, upload


def predict_augmented(
    net: PanopticNet | SemanticNet, images: Sequence[Tensor], augmentation: Augmentation, fusion: str = "mean"
) -> list[Prediction[Tensor]]:
    """Run a network, in evaluation mode, on several views of each image `3 x H x W` and merge the predictions.

    The class of a pixel is the one with the highest mean probability over all views, at full size. Detections of all
    views are mapped back to the image, with their masks, and suppressed by NMS within a class; so scores tend to rise.
    Views of semantic networks are, as in the original, not smoothed before they are shrunk, and merged by `fusion`.
    """
    if len({tuple(image.shape) for image in images}) > 1:
        # padding would be a different part of each view
        return [predict_augmented(net, [image], augmentation, fusion)[0] for image in images]
    if net.result_type is SemanticMap:
        return _segment_augmented(cast(SemanticNet, net), images, augmentation, fusion)
    return _detect_augmented(cast(PanopticNet, net), images, augmentation)


def _detect_augmented(
    net: PanopticNet, images: Sequence[Tensor], augmentation: Augmentation
) -> list[Prediction[Tensor]]:
    height, width = int(images[0].shape[-2]), int(images[0].shape[-1])
    found: list[list[Prediction[Tensor]]] = [[] for _ in images]
    logits: list[list[Tensor]] = [[] for _ in images]
    for scale, mirrored in augmentation.views():
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        features = net.encode(PackedSequence([_view(image, size, mirrored) for image in images]))
        predictions, maps = net.predict_things(features), net.classify(features)
        factors = (height / size[0], width / size[1])
        for k, prediction in enumerate(predictions):
            found[k].append(_map_back(net, prediction, (height, width), factors, mirrored))
            if maps is not None:
                logits[k].append((maps[k].flip(-1) if mirrored else maps[k]).float())
    merged = [_merge(net, parts, views, (height, width)) for parts, views in zip(found, logits)]
    results = []
    for one, parts in zip(merged, found):
        # of integers the map of the first view
        means = {
            name: torch.stack([p.maps[name] for p in parts]).mean(0) if values.is_floating_point() else values
            for name, values in parts[0].maps.items()
        }
        results.append(replace(one, maps=means))
    return results


def _segment_augmented(
    net: SemanticNet, images: Sequence[Tensor], augmentation: Augmentation, fusion: str
) -> list[Prediction[Tensor]]:
    height, width = int(images[0].shape[-2]), int(images[0].shape[-1])
    views: list[list[Tensor]] = [[] for _ in images]
    for scale, mirrored in augmentation.views():
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        logits = net(PackedSequence([_view(image, size, mirrored, antialias=False) for image in images])).logits
        for kept, x in zip(views, logits.float()):
            kept.append(x.flip(-1) if mirrored else x)
    maps = [upsample_fusion(kept, (height, width), fusion) for kept in views]
    return [class_map_prediction(c, p if net.options.probabilities else None) for c, p in maps]


def _view(image: Tensor, size: tuple[int, int], mirrored: bool, antialias: bool = True) -> Tensor:
    if tuple(image.shape[-2:]) != size:
        image = functional.interpolate(image[None], size, mode="bilinear", align_corners=False, antialias=antialias)[0]
    return image.flip(-1) if mirrored else image


def _map_back(
    net: PanopticNet, p: Prediction[Tensor], size: tuple[int, int], factors: tuple[float, float], mirrored: bool
) -> Prediction[Tensor]:
    """Map the detections of a view, and the maps of custom heads, back to pixels of the image."""
    boxes = p.boxes * upload(torch.tensor(factors * 2, dtype=p.boxes.dtype), p.boxes.device)
    masks = p.mask_logits
    if mirrored:
        y0, x0, y1, x1 = boxes.unbind(1)
        boxes = torch.stack((y0, size[1] - x1, y1, size[1] - x0), 1)
        masks = None if masks is None else masks.flip(-1)
    maps = {}
    for name, values in p.maps.items():
        spec = net.map_formats[name]
        values = mirrored_map(values, spec) if mirrored else values
        enlarged = values.shape[-1] / size[1]
        whole = resized(values[None, None] if spec.channels == 1 else values[None], size, spec)[0]
        factor = value_factor(spec.values or "none", enlarged, enlarged)
        whole = whole if factor == 1 else whole / factor
        maps[name] = whole[0] if spec.channels == 1 else whole
    return Prediction(boxes, p.classes, p.scores, masks, None, size, maps=maps)


def _merge(
    net: PanopticNet, parts: list[Prediction[Tensor]], logits: list[Tensor], size: tuple[int, int]
) -> Prediction[Tensor]:
    boxes, classes = torch.cat([p.boxes for p in parts]), torch.cat([p.classes for p in parts])
    scores = torch.cat([p.scores for p in parts])
    masks = [p.mask_logits for p in parts if p.mask_logits is not None]
    roi = net.options.selector.config
    kept = nms(boxes, scores, roi.nms_threshold, groups=classes)
    if roi.max_predictions < kept.shape[0]:
        kept = kept[: roi.max_predictions]  # by falling score, as if one view had too many
    else:
        kept = kept[torch.argsort(classes[kept], stable=True)]
    semantic = upsample_fusion(logits, size)[0] if logits else None
    return Prediction(
        boxes[kept], classes[kept], scores[kept], torch.cat(masks)[kept] if masks else None, semantic, size
    )
