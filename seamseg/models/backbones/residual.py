"""The residual block of ResNet: basic (two 3x3 convolutions) or bottleneck (1x1, 3x3, 1x1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import NormFactory
from seamseg.ops.abn_projection import PointwiseConv
from seamseg.ops.activation import activate_
from seamseg.ops.norm import InPlaceABN, NormSequential, is_inplace, is_plain, is_pointwise, run_layers


class ResidualBlock(nn.Module):
    """`activation(branch(x) + shortcut(x))` (He et al. 2016; docs/contract.md, section 3 "Body").

    `channels` are the outputs of two convolutions, or of three of a bottleneck; the stride sits on the (first) 3x3 one.
    `dropout` is the probability of dropping a channel before the last convolution. The last norm of the branch and the
    norm of the shortcut have no activation: it follows the sum. With in-place norms these, the projection and the sum
    are computed together, without calls of the modules, unless they have hooks or are of classes of their own.
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
        if len(channels) not in (2, 3):
            raise ValueError(f"ResidualBlock: channels has {len(channels)} entries, expected 2 or 3")
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
        if is_inplace(self.convs[-1]) and is_plain(self.convs, NormSequential):
            return self._norm_and_sum(x)
        shortcut = run_layers((self.proj_conv, self.proj_bn), x) if self.has_projection else x
        branch = self.convs(x)
        # without gradients the addends are not needed again
        total = branch + shortcut if torch.is_grad_enabled() else branch.add_(shortcut)
        return activate_(total, self.activation, self.activation_param)

    def _norm_and_sum(self, x: Tensor) -> Tensor:
        # norm, sum and activation in one operation, which keeps only its result for the backward pass
        *layers, convolution, last = self.convs
        assert isinstance(last, InPlaceABN)
        branch, deferred = last.convolve(convolution, run_layers(layers, x))
        activation = (self.activation, self.activation_param)
        if not self.has_projection:
            return last.add(branch, x, *activation, deferred)
        if is_inplace(self.proj_bn) and is_pointwise(self.proj_conv, strided=True) and self.proj_conv.bias is None:
            return last.add_projection(branch, x, self.proj_conv, self.proj_bn, *activation, deferred)
        return last.add(branch, run_layers((self.proj_conv, self.proj_bn), x), *activation, deferred)
