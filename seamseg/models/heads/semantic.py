"""The semantic head: a small DeepLab on some levels of the pyramid, and one classifier over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config import Config
from seamseg.config.components import register
from seamseg.config.sections import Sem
from seamseg.maps.panoptic_map import VOID
from seamseg.models.backbones.base import NormFactory
from seamseg.models.custom import ImageLoss, SemanticImage, custom_loss
from seamseg.models.network import Terms
from seamseg.ops.abn_steps import defer_scale_gradient
from seamseg.ops.norm import InPlaceABN, convolve_each, is_pointwise, is_trained_in_half, run_layers
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.upsample import upsample_ohem_loss
from seamseg.structures import Batch


class MiniDeepLab(nn.Module):
    """Local, wide and nearly global context of one level (docs/contract.md, section 3 "Semantic head").

    The window of the average, `pooling_size`, is clipped to the map.
    """

    def __init__(self, config: Sem, in_channels: int, norm: NormFactory) -> None:
        super().__init__()
        self.pooling_size = config.pooling_size
        hidden_channels = config.hidden_channels
        self.conv1_3x3 = nn.Conv2d(in_channels, hidden_channels, 3, padding=1, bias=False)
        self.conv1_dil = nn.Conv2d(in_channels, hidden_channels, 3, padding=6, dilation=6, bias=False)
        self.conv1_glb = nn.Conv2d(in_channels, hidden_channels, 1, bias=False)
        self.bn1 = norm(hidden_channels * 3)
        self.conv2 = nn.Conv2d(hidden_channels * 3, hidden_channels, 1, bias=False)
        self.bn2 = norm(hidden_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x h x w` to `N x hidden_channels x h x w`."""
        if is_trained_in_half(x, self.bn1, self.bn2) and is_pointwise(self.conv2):
            return self._add_branches(x)
        # a 1x1 convolution without bias commutes with the average and its padding; so fewer channels are averaged. The
        # average is linear in the kernel, too
        convolutions = (self.conv1_3x3, self.conv1_dil, self.conv1_glb)
        (local, wide, context), deferred = convolve_each(self.bn1, convolutions, x)
        x = self.bn1(torch.cat([local, wide, box_filter_pool(context, self.pooling_size)], dim=1), *deferred)
        return run_layers((self.conv2, self.bn2), x)

    def _add_branches(self, x: Tensor) -> Tensor:
        """Run the 1x1 convolution as a sum over the branches, rounded after each: no map has the channels of all."""
        assert isinstance(self.bn1, InPlaceABN) and isinstance(self.bn2, InPlaceABN) and self.bn2.weight is not None
        kernel, deferred = defer_scale_gradient(self.conv2.weight, self.bn2.weight)
        kernels = kernel.to(x.dtype).chunk(3, dim=1)
        total: Tensor | None = None
        for i, conv in enumerate((self.conv1_3x3, self.conv1_dil, self.conv1_glb)):
            channels = slice(i * conv.out_channels, (i + 1) * conv.out_channels)
            branch, of_conv = self.bn1.convolve(conv, x, channels)
            if conv is self.conv1_glb:
                branch = box_filter_pool(branch, self.pooling_size)
            branch = functional.conv2d(self.bn1.run_channels(branch, channels, of_conv), kernels[i])
            total = branch if total is None else total.add_(branch)
        return cast(Tensor, self.bn2(total, deferred))


class SemanticHead(nn.Module):
    """Class logits for every cell of the finest level in use.

    Parameters
    ----------
    config : the section `[sem]`
    in_channels : channels of the levels
    num_classes : number of stuff and thing classes
    norm : factory of norm + activation layers
    """

    def __init__(self, config: Sem, in_channels: int, num_classes: int, norm: NormFactory) -> None:
        super().__init__()
        self.min_level = config.fpn_min_level
        self.num_levels = config.fpn_levels
        self.output = nn.ModuleList(MiniDeepLab(config, in_channels, norm) for _ in range(self.num_levels))
        self.conv_sem = nn.Conv2d(config.hidden_channels * self.num_levels, num_classes, 1)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Map all levels of the pyramid, finest first, to logits `N x num_classes x h x w` at the finest in use."""
        used = levels[self.min_level : self.min_level + self.num_levels]
        size = used[0].shape[-2:]
        if not is_pointwise(self.conv_sem):
            maps = [module(x) for module, x in zip(self.output, used)]
            others = (functional.interpolate(x, size, mode="bilinear", align_corners=False) for x in maps[1:])
            return cast(Tensor, self.conv_sem(torch.cat((maps[0], *others), dim=1)))
        # The classifier is linear and enlarging commutes with it: classify each level at its own size and add up,
        # instead of enlarging and concatenating hidden_channels of every level.
        weights = self.conv_sem.weight.chunk(self.num_levels, dim=1)
        logits = functional.conv2d(self.output[0](used[0]), weights[0], self.conv_sem.bias)
        for module, x, weight in zip(self.output[1:], used[1:], weights[1:]):
            part = functional.conv2d(module(x), weight)
            logits = logits + functional.interpolate(part, size=size, mode="bilinear", align_corners=False)
        return logits


def semantic_target(masks: Tensor, categories: Tensor) -> Tensor:
    """Return the class of each pixel, int64 `H x W`: of the first layer of the id map `L x H x W` that is not void.

    `categories` (int64) are the classes of the ids, 255 for void.
    """
    target = categories[masks[0]]
    for layer in masks[1:]:
        target = torch.where(target == VOID, categories[layer], target)
    return target


@register("loss", "cross_entropy")
def cross_entropy(image: SemanticImage, keys: Sem) -> Tensor:
    """Return the mean cross-entropy of the hardest pixels, the fraction `ohem` (docs/contract.md, section 4)."""
    height, width = image.target.shape
    return upsample_ohem_loss(image.logits, image.padded_size, (height, width), image.target, keys.ohem)


def semantic_loss(logits: Tensor, padded_size: tuple[int, int], targets: Sequence[Tensor], loss: ImageLoss) -> Tensor:
    """Compute the mean over images of their losses (docs/contract.md, section 4 "Semantic").

    From logits `N x classes x h x w`, the size to which they are upsampled, and the classes `H x W` of each image.
    """
    # which pixels are the hardest depends on small differences: full precision, also under autocast
    with torch.autocast(logits.device.type, enabled=False):
        images = zip(logits.float(), targets)
        return torch.stack([loss(SemanticImage(x, padded_size, target)) for x, target in images]).mean()


@dataclass(frozen=True)
class SemanticLoss:
    """The loss `[sem] loss` of semantic logits, see :func:`semantic_loss`."""

    config: Config

    def step_problem(self) -> str | None:
        """See :meth:`seamseg.models.network.Network.step_problem`."""
        component, _ = self.config.component("loss")
        return None if component.built_in else f"{component.section} is not of seamseg"

    def __call__(self, logits: Tensor, padded_size: tuple[int, int], targets: Batch) -> Terms:
        """Return `sem_loss` of logits `N x classes x h x w`, and the number of images with ground truth."""
        pairs = enumerate(zip(targets.masks, targets.categories))
        classes = {i: semantic_target(m, c) for i, (m, c) in pairs if m is not None and c is not None}
        if not classes:
            return {"sem_loss": (logits[:0].float().sum(), 0)}
        labelled = logits if len(classes) == logits.shape[0] else logits[list(classes)]
        component, keys = self.config.component("loss")
        of_image = partial(component.make, keys=keys) if component.built_in else partial(custom_loss, component, keys)
        return {"sem_loss": (semantic_loss(labelled, padded_size, list(classes.values()), of_image), len(classes))}
