"""Parts of networks with norm and activation before each convolution: residual block and stem (He et al. 2016b)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from seamseg.models.backbones.base import NormFactory
from seamseg.ops.abn_projection import PointwiseConv
from seamseg.ops.norm import CONVOLUTIONS, NormSequential, is_plain
from seamseg.ops.pooling import MaxPool3x3


class PreActivationBlock(nn.Module):
    """`convs(bn1(x)) + shortcut`; the shortcut is `x`, or `proj_conv(bn1(x))` where stride or width changes.

    The stride sits on the first convolution. With in-place norms the input is not kept for the backward pass: `bn1`
    recovers it from its output, which the first convolution keeps, and the sum needs neither of its addends.

    `channels` are the outputs of two 3x3 convolutions, or of 1x1, 3x3 and 1x1 ones, of which the 3x3 has `groups`.
    `dropout` is the probability of dropping a channel before the last convolution.
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
        if len(channels) not in (2, 3):
            raise ValueError(f"PreActivationBlock: channels has {len(channels)} entries, expected 2 or 3")
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


def stem(norm: NormFactory, input_3x3: bool, channels: int = 64) -> nn.Module:
    """Return the first stage of ResNeXt and DenseNet, of stride 4, which ends without a norm."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if input_3x3:
        layers["conv1"] = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        layers["bn1"] = norm(channels)
        layers["conv2"] = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        layers["bn2"] = norm(channels)
        layers["conv3"] = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    else:
        layers["conv1"] = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
    layers["pool"] = MaxPool3x3(2)
    return NormSequential(layers)


def sequence(blocks: Sequence[nn.Module]) -> nn.Sequential:
    """Return blocks in a row, named `block1`, `block2`, ..."""
    return nn.Sequential(OrderedDict((f"block{i}", block) for i, block in enumerate(blocks, start=1)))
