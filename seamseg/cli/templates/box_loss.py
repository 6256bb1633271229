"""A loss of boxes, `[roi] box_loss = example`: of those of anchors and of regions."""

from dataclasses import dataclass

import torch

from seamseg.components import box_loss, key
from seamseg.ops.boxes import decode_boxes


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [box_loss example]."""

    weight: float = key("factor of the generalised IoU, which is added to the smooth L1 loss", 1.0, minimum=0)


@box_loss("example", keys=ExampleKeys)
def example(samples, keys):
    """Return smooth L1 and generalised IoU (arXiv 1902.09630) of boxes, M: one number for each sample."""
    weights = samples.predicted.new_tensor(samples.weights)
    a, b = decode_boxes(samples.boxes, samples.predicted / weights), samples.targets
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    outside = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    both = (high - low).clamp(min=0).prod(dim=1)
    union = (a[:, 2:] - a[:, :2]).prod(dim=1) + (b[:, 2:] - b[:, :2]).prod(dim=1) - both
    hull = outside.prod(dim=1).clamp(min=1e-6)
    iou = both / union.clamp(min=1e-6) - (hull - union) / hull
    plain = torch.nn.functional.smooth_l1_loss(samples.predicted, samples.codes, reduction="none", beta=1.0)
    return plain.sum(dim=1) + keys.weight * (1 - iou)
