"""DenseNet-121/169/201/264 (Huang et al. 2017) with configurable norm + activation layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import Backbone, NormFactory, dilations_of
from seamseg.models.backbones.preactivation import stem
from seamseg.ops.norm import NormSequential, run_layers

DENSENETS: dict[str, tuple[int, int, int, int]] = {
    "densenet121": (6, 12, 24, 16),
    "densenet169": (6, 12, 32, 32),
    "densenet201": (6, 12, 48, 32),
    "densenet264": (6, 12, 64, 48),
}
"""Layers of `mod2`..`mod5` by name."""

GROWTH, BOTTLENECK, COMPRESSION = 32, 4, 0.5


class DenseModule(nn.Module):
    """Layers of which each takes the input and the outputs of all layers before it; one for each of the dilations."""

    def __init__(self, in_channels: int, dilations: Iterable[int], norm: NormFactory) -> None:
        super().__init__()
        self.convs1, self.convs3 = nn.ModuleList(), nn.ModuleList()
        width, hidden = in_channels, BOTTLENECK * GROWTH
        for dilation in dilations:
            self.convs1.append(_norm_conv(norm(width), nn.Conv2d(width, hidden, 1, bias=False)))
            wide = nn.Conv2d(hidden, GROWTH, 3, padding=dilation, dilation=dilation, bias=False)
            self.convs3.append(_norm_conv(norm(hidden), wide))
            width += GROWTH
        self.out_channels = width

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x H x W` to `N x out_channels x H x W`: the input, then the output of each layer."""
        maps = [x]
        for first, second in zip(self.convs1, self.convs3):
            maps.append(run_layers([*first.children(), *second.children()], x))
            x = torch.cat(maps, dim=1)
        return x


class Transition(NormSequential):
    """Norm, 1x1 convolution, and average pooling if the stride is 2, between two modules."""


class DenseNet(Backbone):
    """A DenseNet; returns the outputs of `mod1`..`mod5`, of the transitions `tra2`..`tra4`, and `bn_out`.

    No pooling precedes a module whose `dilation` is not the number 1. With `input_3x3` it begins with three 3x3
    convolutions instead of a 7x7.
    """

    def __init__(
        self,
        layers: Sequence[int],
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        input_3x3: bool = False,
        classes: int = 0,
        keep_outputs: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(classes, keep_outputs, checkpoint)
        width = 2 * GROWTH
        self._add("mod1", stem(norm, input_3x3, width), 4, width)
        for i, (stride, dilations) in enumerate(dilations_of("DenseNet", dilation, layers), start=2):
            if i > 2:
                reduced = int(width * COMPRESSION)
                self._add(f"tra{i - 1}", _transition(width, reduced, stride, norm), stride, reduced)
                width = reduced
            module = DenseModule(width, dilations, norm)
            width = module.out_channels
            self._add(f"mod{i}", module, 1, width)
        self._add("bn_out", norm(width), 1, width)
        self._add_classifier(width)


def _norm_conv(norm: nn.Module, conv: nn.Conv2d) -> nn.Sequential:
    return NormSequential(OrderedDict(bn=norm, conv=conv))


def _transition(in_channels: int, out_channels: int, stride: int, norm: NormFactory) -> Transition:
    layers: OrderedDict[str, nn.Module] = OrderedDict(bn=norm(in_channels))
    layers["conv"] = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    if stride > 1:
        layers["pool"] = nn.AvgPool2d(2, 2)
    return Transition(layers)
