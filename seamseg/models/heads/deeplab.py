"""The head of DeepLabV3 (Chen et al. 2017, arXiv 1706.05587): dilated convolutions and a nearly global context."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seamseg.config.sections import Sem
from seamseg.models.backbones.base import NormFactory
from seamseg.ops.norm import convolve_each, run_layers
from seamseg.ops.pooling import box_filter_pool


class DeeplabV3(nn.Module):
    """Parallel 1x1 and dilated 3x3 convolutions plus a global branch, reduced to `out_channels`.

    The global branch is the mean of the whole map in training. At inference it is the average of a window around each
    cell, `pooling_size`, as large as the maps of training: the mean of a larger map would be of another kind than in
    training. State-dict keys are as in the published Mapillary Vistas network: `map_convs.0` is the 1x1 convolution,
    the others follow in the order of `dilations`.
    """

    def __init__(self, config: Sem, in_channels: int, norm: NormFactory) -> None:
        super().__init__()
        hidden_channels, out_channels = config.hidden_channels, config.out_channels
        self.pooling_size: tuple[int, int] | None = config.pooling_size
        self.hidden_channels = hidden_channels
        convolutions = [nn.Conv2d(in_channels, hidden_channels, 1, bias=False)]
        convolutions += [
            nn.Conv2d(in_channels, hidden_channels, 3, padding=dilation, dilation=dilation, bias=False)
            for dilation in config.dilations
        ]
        self.map_convs = nn.ModuleList(convolutions)
        self.map_bn = norm(hidden_channels * len(convolutions))
        self.global_pooling_conv = nn.Conv2d(in_channels, hidden_channels, 1, bias=False)
        self.global_pooling_bn = norm(hidden_channels)
        self.red_conv = nn.Conv2d(hidden_channels * len(convolutions), out_channels, 1, bias=False)
        self.pool_red_conv = nn.Conv2d(hidden_channels, out_channels, 1, bias=False)
        self.red_bn = norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x h x w` to `N x out_channels x h x w`."""
        parts, deferred = convolve_each(self.map_bn, self.map_convs, x)
        local = self.map_bn(torch.cat(parts, dim=1), *deferred)
        (local,), of_local = convolve_each(self.red_bn, [self.red_conv], local)
        (context,), of_context = convolve_each(self.red_bn, [self.pool_red_conv], self._context(x))
        # the sum is linear in both kernels together; the first row, whose gradient is that of the weight, counts once
        deferred = tuple(torch.stack((a[0], a[1] + b[1])) for a, b in zip(of_local, of_context))
        reduced: Tensor = self.red_bn(local + context, *deferred)
        return reduced

    def _context(self, x: Tensor) -> Tensor:
        """Return the global branch, `N x hidden x 1 x 1` or `N x hidden x h x w`."""
        layers = (self.global_pooling_conv, self.global_pooling_bn)
        if self.training or self.pooling_size is None:
            return run_layers(layers, x.mean((2, 3), keepdim=True))
        # a 1x1 convolution without bias commutes with the average and its padding; so fewer channels are averaged
        context: Tensor = self.global_pooling_bn(box_filter_pool(self.global_pooling_conv(x), self.pooling_size))
        return context
