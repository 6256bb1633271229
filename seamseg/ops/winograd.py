"""3x3 convolutions with a quarter of the multiplications, for inference on a CPU (Lavin and Gray, arXiv 1509.09308).

Winograd's F(4x4, 3x3) computes 4x4 outputs from 6x6 inputs with 36 products a pair of channels instead of 144: inputs
and kernel are transformed, multiplied by 36 matrix products over the channels, and transformed back. A dilated
convolution is an ordinary one on each of the maps of every `dilation`-th pixel. The polynomials are evaluated at 0,
+-3/4, +-3/2 and infinity: rounding errors are half of those with the usual points 0, +-1, +-2 and infinity, and in a
whole network like with the direct sum.

Tiles are computed as a whole: an input that is NaN or infinite makes all 16 outputs of its tile NaN, and may do so to
the tiles beside it (with a dilation, tiles of every `dilation`-th pixel). The direct sum loses 3x3 pixels.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from seamseg.ops._library import define
from seamseg.ops.fused import FusedConv2d, takes_onednn
from seamseg.ops.reference import winograd as plain
from seamseg.ops.reference.winograd import tile_count, transforms

LEAST_CHANNELS = 64
"""Convolutions with fewer channels are not faster: the transforms take a constant time a channel."""

_CHUNK = 1 << 23
"""Elements of the transformed tiles that are computed at a time."""

_TRANSFORMS = 1.3
"""Time of the products with the transforms, of many channels, relative to the products alone."""

_LEAST_WORK = 3 << 19
"""Tiles x input channels x output channels from which the time saved is more than 36 products take to start."""

_REGIONS = 100
"""Number of regions that is assumed: the most detections of an image by default."""

_LANES = 16
"""The kernels work on this many channels together."""


def _input_fake(x: Tensor, dilation: int, first: int, rows: int) -> Tensor:
    tiles = x.shape[0] * dilation * rows * dilation * tile_count(x.shape[2], dilation)
    return x.new_empty((36, tiles, x.shape[3]))


winograd_input = define("winograd_input", plain.winograd_input, _input_fake)
"""Transform `rows` rows of tiles, from `first` on, of a map that is padded with `dilation` zeros.

Map a contiguous float32 `N x H x W x C`, C a multiple of 16, to `36 x tiles x C`: a tile for each image, map of every
`dilation`-th pixel, row and column; a row of tiles has 4 pixels of each of these maps.
"""

winograd_output = define("winograd_output", plain.winograd_output, lambda *_: None)
"""Transform products back and write `leaky_relu(convolution + bias + residual)` into rows of tiles of the map `out`.

The products are 36 of `tiles x C`, in the order of `winograd_input`; `slope` is 1 for no activation. `out` and the
residual (or None) are contiguous float32 `N x H x W x C`.
"""


class WinogradConv2d(FusedConv2d):
    """A :class:`FusedConv2d`, in float32 on a CPU by Winograd's algorithm.

    The transformed kernel takes four times the memory of the kernel, which is kept as well. With `regions` its maps are
    regions of images: their number does not decide how they are computed, nor their bits (but for torch 2.11 on a CPU
    without AVX-512, which rounds by their number).
    """

    def __init__(self, conv: FusedConv2d, regions: bool = False) -> None:
        if not is_suitable(conv):
            raise ValueError(f"WinogradConv2d: needs a 3x3 convolution of stride 1 that keeps the size, got {conv}")
        super().__init__(conv.weight, conv.bias, conv, conv.activation, conv.activation_param)
        self.regions = regions

    def forward(self, x: Tensor, residual: Tensor | None = None, level: int = 0) -> Tensor:
        """Map `N x I x H x W` to `N x O x H x W`, see :class:`FusedConv2d`."""
        if x.dtype == torch.float32 and takes_onednn(x, self.weight) and self._saves_time(x):
            return self._winograd(x, residual)
        return super().forward(x, residual, level)

    def _saves_time(self, x: Tensor) -> bool:
        """Return whether the tiles take less time than the direct sum, which leaves out the zeros around the map."""
        count = _REGIONS if self.regions else x.shape[0]
        d, ratio, work = self.dilation[0], 1.0, count * self.weight.shape[0] * self.weight.shape[1]
        for side in x.shape[2:]:
            tiles = d * tile_count(side, d)
            work *= tiles
            ratio *= 4 * tiles / (side - min(d, side) * 2 / 3)
        if work < _LEAST_WORK:
            return False
        # a quarter of the products, and the transforms
        return ratio < 4 / _TRANSFORMS

    def _kernel(self, rows: int) -> list[Tensor]:
        """Return the 36 transformed kernels, packed for a number of tiles."""
        packs = self._packs()
        if 36 not in packs:
            outputs, inputs = self.weight.shape[:2]
            kernel = transforms()[1] @ self.weight.detach().double().reshape(outputs * inputs, 9).T
            matrices = kernel.float().view(36, outputs, inputs)
            packs.update({36 + i: torch.ops.mkldnn._reorder_linear_weight(m, rows) for i, m in enumerate(matrices)})
        return [packs[36 + i] for i in range(36)]

    def _winograd(self, x: Tensor, residual: Tensor | None) -> Tensor:
        unary = self._unary()
        slope = unary[1][0] if unary[1] else 1.0
        y = torch.empty_like(x[:, :1].expand(-1, self.weight.shape[0], -1, -1), memory_format=torch.channels_last)
        nhwc, out = (map_.permute(0, 2, 3, 1).contiguous() for map_ in (x, y))
        added = None if residual is None else residual.permute(0, 2, 3, 1).contiguous()
        d, multiply = self.dilation[0], torch.ops.mkldnn._linear_pointwise
        rows = tile_count(x.shape[2], d)
        tiles = x.shape[0] * d * d * tile_count(x.shape[3], d)
        step = max(1, _CHUNK // (36 * tiles * max(self.weight.shape[:2])))
        for first in range(0, rows, step):
            count = min(step, rows - first)
            transformed = winograd_input(nhwc, d, first, count)
            kernel = self._kernel(transformed.shape[1])
            products = [multiply(t, m, None, "none", [], "") for t, m in zip(transformed, kernel)]
            winograd_output(products, self.bias, added, slope, out, d, first, count)
        return self._activate(y) if unary[0] == "none" else y


def is_suitable(conv: nn.Module) -> TypeGuard[FusedConv2d]:
    """Return whether a layer is a :class:`FusedConv2d` that :class:`WinogradConv2d` computes faster."""
    return (
        type(conv) is FusedConv2d
        and tuple(conv.weight.shape[2:]) == (3, 3)
        and min(conv.weight.shape[:2]) >= LEAST_CHANNELS
        and all(channels % _LANES == 0 for channels in conv.weight.shape[:2])
        and conv.groups == 1
        and conv.stride == [1, 1]
        and conv.dilation[0] == conv.dilation[1]
        and conv.padding == conv.dilation
    )
