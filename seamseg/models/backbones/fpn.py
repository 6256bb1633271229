"""Feature pyramid (Lin et al. 2017) and the body of the network: a backbone with a pyramid on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.models.backbones.base import Backbone, NormFactory
from seamseg.ops.abn_recompute import checkpointed
from seamseg.ops.norm import InPlaceABN, NormSequential, is_plain, is_trained_in_half


class FPN(nn.Module):
    """Top-down pyramid over the maps of a backbone (docs/contract.md, section 3 "FPN").

    Parameters
    ----------
    in_channels : channels of the backbone's maps, finest first
    out_channels : channels of every level
    extra_scales : coarser levels, each half the size of the last, made from the backbone's last map
    norm : factory of norm + activation layers
    interpolation : how a coarse map is enlarged: `nearest` or `bilinear`
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        extra_scales: int,
        norm: NormFactory,
        interpolation: str = "nearest",
    ) -> None:
        super().__init__()
        self.interpolation = interpolation
        self.lateral = nn.ModuleList(_conv_norm(c, out_channels, 1, 1, norm) for c in in_channels)
        self.output = nn.ModuleList(_conv_norm(out_channels, out_channels, 3, 1, norm) for _ in in_channels)
        if extra_scales > 0:
            widths = [in_channels[-1]] + [out_channels] * (extra_scales - 1)
            self.extra = nn.ModuleList(_conv_norm(c, out_channels, 3, 2, norm) for c in widths)
        self.extra_scales = extra_scales

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Map maps of the backbone, finest first, to levels `N x out_channels x h x w`, finest first."""
        sums = [_lateral(lateral, x) for lateral, x in zip(self.lateral[1:], maps[1:])]
        for i in range(len(sums) - 2, -1, -1):
            sums[i] = self._add_enlarged(sums[i], sums[i + 1])
        levels = [self._finest(maps[0], *sums[:1])]
        levels += [output(x) for output, x in zip(self.output[1:], sums)]
        if self.extra_scales > 0:
            x = maps[-1]
            for extra in self.extra:
                x = extra(x)
                levels.append(x)
        return levels

    def _finest(self, x: Tensor, *coarse: Tensor) -> Tensor:
        lateral, output = self.lateral[0], self.output[0]

        def sum_of(x: Tensor, *coarse: Tensor) -> Tensor:
            y = _lateral(lateral, x)
            return self._add_enlarged(y, *coarse) if coarse else y

        if not is_plain(output, NormSequential) or not is_trained_in_half(x, cast(nn.Module, lateral.bn), output[-1]):
            return cast(Tensor, output(sum_of(x, *coarse)))
        conv, norm = output
        assert isinstance(norm, InPlaceABN)
        # the largest sum, which nothing else reads, is made again; the convolution ends the part and does not run again
        y, deferred = checkpointed(lambda *maps: norm.convolve(conv, sum_of(*maps)), x, *coarse)
        return cast(Tensor, norm(y, deferred))

    def _add_enlarged(self, fine: Tensor, coarse: Tensor) -> Tensor:
        # a compiler fuses the enlarged map anyway, and must not recompile where sizes are not exactly doubled
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.interpolation != "nearest":
            return fine + self._enlarge(coarse, fine)
        height, width = coarse.shape[-2:]
        if fine.shape[-2:] != (2 * height, 2 * width):
            return fine + self._enlarge(coarse, fine)
        # each coarse value is added to its four pixels, without an enlarged map
        cells = torch.unflatten(torch.unflatten(fine, 3, (width, 2)), 2, (height, 2))
        cells.add_(coarse[:, :, :, None, :, None])
        return fine

    def _enlarge(self, x: Tensor, like: Tensor) -> Tensor:
        return functional.interpolate(x, size=like.shape[-2:], mode=self.interpolation)


class FPNBody(nn.Module):
    """Images to pyramid levels.

    Parameters
    ----------
    backbone : network that returns a dict of maps
    fpn : the pyramid
    inputs : names of the maps that are inputs of the pyramid, finest first
    checkpoint : keep only the levels of the pyramid for the backward pass, which computes the rest again
    """

    def __init__(self, backbone: Backbone, fpn: FPN, inputs: Sequence[str], checkpoint: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.fpn = fpn
        self.inputs = tuple(inputs)
        self.checkpoint = checkpoint

    def forward(self, images: Tensor) -> list[Tensor]:
        """Map images `N x 3 x H x W` to the levels of the pyramid, finest first."""
        maps = self.backbone(images)
        used = [maps[name] for name in self.inputs]
        levels: list[Tensor] = checkpointed(self.fpn, used) if self.checkpoint else self.fpn(used)
        return levels


def _lateral(layers: nn.Module, x: Tensor) -> Tensor:
    """Run convolution and norm; for an in-place norm keep only `x`, as the sum with the coarser level is kept, too."""
    y: Tensor = checkpointed(layers, x) if isinstance(layers.bn, InPlaceABN) else layers(x)
    return y


def _conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int, norm: NormFactory) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    return NormSequential(OrderedDict(conv=conv, bn=norm(out_channels)))
