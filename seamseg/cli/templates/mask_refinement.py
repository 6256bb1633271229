"""A refinement of masks, `[roi] mask_refinement = example`: coarse masks to finer ones."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from seamseg.components import MaskRefinement, key, mask_refinement
from seamseg.ops.roi_sampling import roi_features


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [mask_refinement example]."""

    channels: int = key("channels of the hidden layer", 32, minimum=1)


@mask_refinement("example", keys=ExampleKeys)
class Example(MaskRefinement):
    """Two convolutions of the enlarged mask and the features of the finest level."""

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.hidden = nn.Conv2d(context.width + 1, keys.channels, 3, padding=1)
        self.output = nn.Conv2d(keys.channels, 1, 3, padding=1)
        nn.init.zeros_(self.output.weight)

    def refine(self, regions):
        """Map coarse logits P x H x W to P x 2H x 2W."""
        large = functional.interpolate(regions.coarse[:, None], scale_factor=2, mode="bilinear", align_corners=False)
        level = torch.zeros_like(regions.image)
        size = (2 * regions.coarse.shape[1], 2 * regions.coarse.shape[2])
        x = roi_features([regions.levels[0]], regions.boxes, regions.image, level, regions.padded_size, size)
        x = self.hidden(torch.cat((x, large.to(x.dtype)), dim=1)).relu()
        return large[:, 0] + self.output(x)[:, 0].to(large.dtype)

    def forward(self, regions):
        """Return the refined logits and the boxes; P may be 0."""
        return self.refine(regions), regions.boxes

    def loss(self, outputs, truth):
        """Return the mean cross-entropy of the pixels that are not ignored."""
        logits, boxes = outputs
        targets = truth.inside(boxes[:, None], tuple(logits.shape[-2:]))[:, 0]
        valid = (targets >= 0).float()
        losses = functional.binary_cross_entropy_with_logits(
            logits, targets.clamp(min=0), weight=valid, reduction="sum"
        )
        return losses / valid.sum().clamp(min=1)
