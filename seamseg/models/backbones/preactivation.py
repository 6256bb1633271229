"""Networks with norm and activation before each convolution (He et al. 2016b): ResNeXt, WiderResNet and DenseNet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seamseg.config.kinds import is_dilated_a2
from seamseg.models.backbones.base import Backbone, NormFactory, dilations_of
from seamseg.ops.norm import CONVOLUTIONS, NormSequential, PointwiseConv, is_plain, run_layers
from seamseg.ops.pooling import MaxPool3x3


class PreActivationBlock(nn.Module):
    """`convs(bn1(x)) + shortcut`; the shortcut is `x`, or `proj_conv(bn1(x))` where stride or width changes.

    With in-place norms the input is not kept for the backward pass: `bn1` recovers it from its output, which the first
    convolution keeps, and the sum needs neither of its addends. `channels` are the outputs of two 3x3 convolutions, or
    of 1x1, 3x3 and 1x1 ones, of which the 3x3 has `groups`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        norm: NormFactory,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kernels = (3, 3) if len(channels) == 2 else (1, 3, 1)

        self.bn1 = norm(in_channels)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        width = in_channels
        for i, (kernel, out) in enumerate(zip(kernels, channels), start=1):
            if i > 1:
                layers[f"bn{i}"] = norm(width)
            if i == len(kernels) and dropout > 0:
                layers["dropout"] = nn.Dropout2d(dropout)
            step = stride if i == 1 else 1
            if kernel == 1:
                layers[f"conv{i}"] = PointwiseConv(width, out, 1, stride=step, bias=False)
            else:
                grouped = groups if len(kernels) == 3 else 1
                layers[f"conv{i}"] = nn.Conv2d(width, out, 3, step, dilation, dilation, grouped, bias=False)
            width = out
        self.convs = NormSequential(layers)
        self.has_projection = stride != 1 or in_channels != width
        if self.has_projection:
            self.proj_conv = PointwiseConv(in_channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x H x W` to `N x channels[-1] x H/stride x W/stride`."""
        y = self.bn1(x)
        shortcut = self.proj_conv(y) if self.has_projection else x
        branch: Tensor = self.convs(y)
        # a convolution does not need its output again
        return branch.add_(shortcut) if is_plain(self.convs[-1], *CONVOLUTIONS) else branch + shortcut


def _stem(norm: NormFactory, input_3x3: bool) -> nn.Module:
    """Return the first stage of ResNeXt and DenseNet, of stride 4, which ends without a norm."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if input_3x3:
        layers["conv1"] = nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False)
        layers["bn1"] = norm(64)
        layers["conv2"] = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        layers["bn2"] = norm(64)
        layers["conv3"] = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    else:
        layers["conv1"] = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layers["pool"] = MaxPool3x3(2)
    return NormSequential(layers)


@dataclass(frozen=True)
class ResNeXtArchitecture:
    """Blocks of `mod2`..`mod5`, groups, and the channels of the convolutions of `mod2`, which double in each stage."""

    blocks: tuple[int, ...]
    groups: int = 64
    channels: tuple[int, ...] = (128, 128, 256)


RESNEXTS: dict[str, ResNeXtArchitecture] = {
    "resnext50": ResNeXtArchitecture((3, 4, 6, 3)),
    "resnext101": ResNeXtArchitecture((3, 4, 23, 3)),
    "resnext152": ResNeXtArchitecture((3, 8, 36, 3)),
}


class ResNeXt(Backbone):
    """A pre-activation ResNeXt (Xie et al. 2017, arXiv 1712.02616): `mod1`..`mod5`, without norm, and `bn_out`.

    A stage whose `dilation` is not the number 1 keeps the size of its input. With `input_3x3` it begins with three 3x3
    convolutions instead of a 7x7.
    """

    def __init__(
        self,
        architecture: ResNeXtArchitecture,
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        input_3x3: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._add("mod1", _stem(norm, input_3x3), 4, 64)
        width, channels = 64, architecture.channels
        for i, (stride, dilations) in enumerate(dilations_of("ResNeXt", dilation, architecture.blocks), start=2):
            # mod1 always pools
            step, stage = stride if i > 2 else 1, nn.Sequential()
            for block, d in enumerate(dilations, start=1):
                first = step if block == 1 else 1
                made = PreActivationBlock(width, channels, norm, first, d, architecture.groups)
                stage.add_module(f"block{block}", made)
                width = channels[-1]
            self._add(f"mod{i}", stage, step, width)
            channels = tuple(2 * c for c in channels)
        self._add("bn_out", norm(width), 1, width)


WIDER_RESNETS: dict[str, tuple[int, ...]] = {
    "wider_resnet16": (1, 1, 1, 1, 1, 1),
    "wider_resnet20": (1, 1, 1, 3, 1, 1),
    "wider_resnet38": (3, 3, 6, 3, 1, 1),
}
"""Blocks of `mod2`..`mod7` by name; the A2 form has the same."""

_WIDER_CHANNELS = ((128, 128), (256, 256), (512, 512), (512, 1024), (512, 1024, 2048), (1024, 2048, 4096))


class WiderResNet(Backbone):
    """A WiderResNet (Wu et al., arXiv 1611.10080) with a max pooling before each of `mod2`..`mod6`.

    The outputs of `mod1`..`mod7` have no norm, `bn_out` is that of the last.
    """

    a2: ClassVar[bool] = False

    def __init__(
        self,
        blocks: Sequence[int],
        norm: NormFactory,
        dilation: bool | Sequence[int] = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        dilated = self.a2 and is_dilated_a2(dilation)
        if not dilated and dilation is not False:
            allowed = "True, False or (1, 2, 4, 4)" if self.a2 else "False"
            raise ValueError(f"{type(self).__name__}: dilation must be {allowed}, got {dilation!r}")
        self._add("mod1", NormSequential(OrderedDict(conv1=nn.Conv2d(3, 64, 3, padding=1, bias=False))), 1, 64)
        width = 64
        for i, (count, channels) in enumerate(zip(blocks, _WIDER_CHANNELS), start=2):
            if i < (4 if self.a2 else 7):
                self._add(f"pool{i}", MaxPool3x3(2), 2)
            stride = 2 if self.a2 and i in ((4,) if dilated else (4, 5, 6)) else 1
            apart = {5: 2, 6: 4, 7: 4}.get(i, 1) if dilated else 1
            dropout = {6: 0.3, 7: 0.5}.get(i, 0.0) if self.a2 else 0.0
            stage = nn.Sequential()
            for block in range(1, count + 1):
                first = stride if block == 1 else 1
                made = PreActivationBlock(width, channels, norm, first, apart, dropout=dropout)
                stage.add_module(f"block{block}", made)
                width = channels[-1]
            self._add(f"mod{i}", stage, stride, width)
        self._add("bn_out", norm(width), 1, width)


class WiderResNetA2(WiderResNet):
    """A WiderResNet with strides in place of three poolings, and dropout in `mod6` and `mod7` (arXiv 1712.02616).

    The state dict has the keys of a :class:`WiderResNet`. The stride is 32; with the dilation True, or (1, 2, 4, 4), it
    is 8, with dilation 2 in `mod5` and 4 in `mod6` and `mod7`.
    """

    a2 = True


DENSENETS: dict[str, tuple[int, int, int, int]] = {
    "densenet121": (6, 12, 24, 16),
    "densenet169": (6, 12, 32, 32),
    "densenet201": (6, 12, 48, 32),
    "densenet264": (6, 12, 64, 48),
}
"""Layers of `mod2`..`mod5` by name."""

GROWTH, BOTTLENECK = 32, 4


class DenseModule(nn.Module):
    """Layers of which each takes the input and the outputs of all layers before it; one for each of the dilations."""

    def __init__(self, in_channels: int, dilations: Iterable[int], norm: NormFactory) -> None:
        super().__init__()
        self.convs1, self.convs3 = nn.ModuleList(), nn.ModuleList()
        width, hidden = in_channels, BOTTLENECK * GROWTH
        for dilation in dilations:
            first = OrderedDict(bn=norm(width), conv=nn.Conv2d(width, hidden, 1, bias=False))
            self.convs1.append(NormSequential(first))
            wide = nn.Conv2d(hidden, GROWTH, 3, padding=dilation, dilation=dilation, bias=False)
            self.convs3.append(NormSequential(OrderedDict(bn=norm(hidden), conv=wide)))
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
    """A DenseNet (Huang et al. 2017): `mod1`..`mod5`, the transitions `tra2`..`tra4`, and `bn_out`.

    No pooling precedes a module whose `dilation` is not the number 1. With `input_3x3` it begins with three 3x3
    convolutions instead of a 7x7.
    """

    def __init__(
        self,
        layers: Sequence[int],
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        input_3x3: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        width = 2 * GROWTH
        self._add("mod1", _stem(norm, input_3x3), 4, width)
        for i, (stride, dilations) in enumerate(dilations_of("DenseNet", dilation, layers), start=2):
            if i > 2:
                parts: OrderedDict[str, nn.Module] = OrderedDict(bn=norm(width))
                parts["conv"] = nn.Conv2d(width, width // 2, 1, bias=False)
                if stride > 1:
                    parts["pool"] = nn.AvgPool2d(2, 2)
                width //= 2
                self._add(f"tra{i - 1}", Transition(parts), stride, width)
            module = DenseModule(width, dilations, norm)
            width = module.out_channels
            self._add(f"mod{i}", module, 1, width)
        self._add("bn_out", norm(width), 1, width)
