"""ResNet-18/34/50/101/152 (He et al. 2016) with configurable norm + activation layers, and its residual block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import Backbone, NormFactory, dilations_of
from seamseg.ops.fused import activate
from seamseg.ops.norm import IN_PLACE, InPlaceABN, NormSequential, PointwiseConv, is_plain, is_pointwise, run_layers
from seamseg.ops.pooling import MaxPool3x3


class ResidualBlock(nn.Module):
    """`activation(branch(x) + shortcut(x))` (He et al. 2016; docs/contract.md, section 3 "Body").

    `channels` are the outputs of two convolutions, or of three of a bottleneck; the stride sits on the (first) 3x3 one.
    With in-place norms the last two norms, the projection and the sum are computed together, without calls of the
    modules, unless they have hooks or are of classes of their own.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        norm: NormFactory,
        stride: int = 1,
        dilation: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kernels = (3, 3) if len(channels) == 2 else (1, 3, 1)

        layers: OrderedDict[str, nn.Module] = OrderedDict()
        last = len(kernels)
        width, left = in_channels, stride
        for i, (kernel, out) in enumerate(zip(kernels, channels), start=1):
            if i == last and dropout > 0:
                layers["dropout"] = nn.Dropout2d(dropout)
            step, dil = (left, dilation) if kernel == 3 else (1, 1)
            if kernel == 3:
                left = 1
            layers[f"conv{i}"] = nn.Conv2d(width, out, kernel, step, dil * (kernel // 2), dil, bias=False)
            layers[f"bn{i}"] = norm(out) if i < last else norm(out, activation="identity")
            width = out
        self.convs = NormSequential(layers)
        self.activation = str(layers["bn1"].activation)
        self.activation_param = float(layers["bn1"].activation_param)  # type: ignore[arg-type]

        if stride != 1 or in_channels != width:
            self.proj_conv = PointwiseConv(in_channels, width, 1, stride=stride, bias=False)
            self.proj_bn = norm(width, activation="identity")
        self.has_projection = stride != 1 or in_channels != width

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x H x W` to `N x channels[-1] x H/stride x W/stride`."""
        activation = (self.activation, self.activation_param)
        if not is_plain(self.convs[-1], *IN_PLACE) or not is_plain(self.convs, NormSequential):
            shortcut = run_layers((self.proj_conv, self.proj_bn), x) if self.has_projection else x
            branch = self.convs(x)
            # without gradients the addends are not needed again
            total = branch + shortcut if torch.is_grad_enabled() else branch.add_(shortcut)
            return activate(total, *activation, inplace=True)
        # norm, sum and activation in one operation, which keeps only its result for the backward pass
        *layers, convolution, last = self.convs
        assert isinstance(last, InPlaceABN)
        branch, deferred = last.convolve(convolution, run_layers(layers, x))
        if not self.has_projection:
            return last.add(branch, x, *activation, deferred)
        pointwise = is_pointwise(self.proj_conv, strided=True) and self.proj_conv.bias is None
        if pointwise and is_plain(self.proj_bn, *IN_PLACE):
            return last.add_projection(branch, x, self.proj_conv, self.proj_bn, *activation, deferred)
        return last.add(branch, run_layers((self.proj_conv, self.proj_bn), x), *activation, deferred)


@dataclass(frozen=True)
class Architecture:
    """Blocks of `mod2`..`mod5`, whether they are bottlenecks, and the channels of `mod1`, which the others follow."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    width: int = 64

    def channels(self, module: int) -> tuple[int, ...]:
        """Return the output channels of the convolutions of a block of `mod<module>`, module 2 to 5."""
        width = self.width * 2 ** (module - 2)
        return (width, width, 4 * width) if self.bottleneck else (width, width)


RESNETS: dict[str, Architecture] = {
    "resnet18": Architecture((2, 2, 2, 2), bottleneck=False),
    "resnet34": Architecture((3, 4, 6, 3), bottleneck=False),
    "resnet50": Architecture((3, 4, 6, 3), bottleneck=True),
    "resnet101": Architecture((3, 4, 23, 3), bottleneck=True),
    "resnet152": Architecture((3, 8, 36, 3), bottleneck=True),
}
"""The networks by name."""


class ResNet(Backbone):
    """A ResNet that returns the output of each of its five stages (docs/contract.md, section 3 "Body").

    A stage whose `dilation` is not the number 1 keeps the size of its input, and before a `mod2` of this kind there is
    no max pooling. `dropout` of channels is one probability, or one for each of `mod2`..`mod5`. `caffe_mode` gives the
    first convolution a bias, as networks converted from Caffe have.
    """

    def __init__(
        self,
        architecture: Architecture,
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        dropout: float | Sequence[float] = 0.0,
        caffe_mode: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        dropouts = tuple(dropout) if isinstance(dropout, Sequence) else (dropout,) * 4
        if len(dropouts) != 4:
            raise ValueError(f"ResNet: dropout has {len(dropouts)} entries, give one number or four (mod2 to mod5)")

        stages = dilations_of("ResNet", dilation, architecture.blocks)
        width = architecture.width
        stem: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(3, width, 7, stride=2, padding=3, bias=caffe_mode), bn1=norm(width)
        )
        pooling, _ = stages[0]
        if pooling > 1:
            stem["pool1"] = MaxPool3x3(pooling)
        self._add("mod1", NormSequential(stem), 2 * pooling, width)
        for i, (stride, dilations) in enumerate(stages, start=2):
            channels, blocks = architecture.channels(i), OrderedDict[str, nn.Module]()
            step = stride if i > 2 else 1
            for block, d in enumerate(dilations, start=1):
                first = step if block == 1 else 1
                blocks[f"block{block}"] = ResidualBlock(width, channels, norm, first, d, dropouts[i - 2])
                width = channels[-1]
            self._add(f"mod{i}", nn.Sequential(blocks), step, width)
