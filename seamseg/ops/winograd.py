"""3x3 convolutions with a quarter of the multiplications, on a CPU (Lavin and Gray, arXiv 1509.09308).

Winograd's F(4x4, 3x3) computes 4x4 outputs from 6x6 inputs with 36 products a pair of channels instead of 144: inputs
and kernel are transformed, multiplied by 36 matrix products over the channels, and transformed back. A dilated
convolution is an ordinary one on each of the maps of every `dilation`-th pixel. The polynomials are evaluated at 0,
+-3/4, +-3/2 and infinity: rounding errors are half of those with the usual points 0, +-1, +-2 and infinity, and in a
whole network like with the direct sum. The gradient of the input is a convolution as well; that of the kernel is the
sum over the tiles of 36 products of the transformed input and gradient, transformed to 3x3.

Tiles are computed as a whole: an input that is NaN or infinite makes all 16 outputs of its tile NaN, and may do so to
the tiles beside it (with a dilation, tiles of every `dilation`-th pixel). The direct sum loses 3x3 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from seamseg.ops._library import define, differentiable_once
from seamseg.ops.fused import FusedConv2d, _attempt, _usable
from seamseg.ops.reference import winograd as plain
from seamseg.ops.reference.winograd import tile_count, transforms

LEAST_CHANNELS = 64
"""Convolutions with fewer channels are not faster: the transforms take a constant time a channel."""

_CHUNK = 1 << 22
"""Elements of the transformed tiles that are computed at a time: 16 MiB, which a cache holds."""

_TRANSFORMS = 1.3
"""Time of the products with the transforms, of many channels, relative to the products alone."""

_LEAST_WORK = 3 << 19
"""Tiles x input channels x output channels from which the time saved is more than 36 products take to start."""

_LEAST_TILES = 64
"""Tiles from which the time saved is more than a transform of the kernel takes, as in each step of a training."""

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

winograd_gradient = define("winograd_gradient", plain.winograd_gradient, _input_fake)
"""Transform `rows` rows of tiles of the gradient of a convolution's output: the transpose of `winograd_output`.

Arguments and result are as of `winograd_input`.
"""

winograd_output = define("winograd_output", plain.winograd_output, lambda *_: None)
"""Transform products back and write `leaky_relu(convolution + bias + residual)` into rows of tiles of the map `out`.

The products are 36 of `tiles x C`, in the order of `winograd_input`; `slope` is 1 for no activation. `out` and the
residual (or None) are contiguous float32 `N x H x W x C`.
"""


class WinogradConv2d(FusedConv2d):
    """A :class:`FusedConv2d` that is :func:`is_suitable`, in float32 on a CPU by Winograd's algorithm.

    The transformed kernel takes four times the memory of the kernel, which is kept as well. With `regions` its maps are
    regions of images: their number does not decide how they are computed, nor their bits (but for torch 2.11 on a CPU
    without AVX-512, which rounds by their number).
    """

    def __init__(self, conv: FusedConv2d, regions: bool = False) -> None:
        super().__init__(conv.weight, conv.bias, conv, conv.activation, conv.activation_param)
        self.regions = regions

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map `N x I x H x W` to `N x O x H x W`, see :class:`FusedConv2d`."""
        count = _REGIONS if self.regions else x.shape[0]
        usable = x.dtype == torch.float32 and _usable("Winograd", x, self.weight)
        if usable and _saves_time(x, self.weight, self.dilation[0], count):
            y = _attempt("Winograd", lambda: self._winograd(x, residual))
            if y is not None:
                return y
        return super().forward(x, residual)

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
        for part, first, rows in _chunks(nhwc, d, max(self.weight.shape[:2])):
            transformed = winograd_input(nhwc[part], d, first, rows)
            kernel = self._kernel(transformed.shape[1])
            products = [multiply(t, m, None, "none", [], "") for t, m in zip(transformed, kernel)]
            residual = None if added is None else added[part]
            winograd_output(products, self.bias, residual, slope, out[part], d, first, rows)
        return self._activate(y) if unary[0] == "none" else y


class TrainedWinogradConv2d(nn.Conv2d):
    """A convolution of a network in training, in float32 on a CPU by Winograd's algorithm, with its gradients.

    Under autocast or a compiler, and where the tiles take longer, it is the direct sum. The backward pass keeps the
    input, as that of the direct sum does.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None and _takes_tiles(input, weight, self.dilation[0]):
            y: Tensor = _Convolution.apply(input, weight, self.dilation[0])
        else:
            y = super()._conv_forward(input, weight, bias)
        return y


def use_winograd(net: nn.Module) -> None:
    """Make 3x3 convolutions of a network that is to be trained :class:`TrainedWinogradConv2d`, in place."""
    for layer in net.modules():
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and layer.bias is None and _fits(layer):
            layer.__class__ = TrainedWinogradConv2d


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        return _convolve(x, _kernels(weight).transpose(1, 2), dilation)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), dilation = saved, ctx.dilation
        dx = _convolve(dy, _kernels(weight, transposed=True), dilation) if ctx.needs_input_grad[0] else None
        return dx, _kernel_gradient(dy, x, dilation) if ctx.needs_input_grad[1] else None, None


def _convolve(x: Tensor, kernels: Tensor, dilation: int) -> Tensor:
    """Convolve `N x I x H x W` with transformed kernels `36 x I x O`."""
    outputs = kernels.shape[2]
    y = torch.empty((x.shape[0], outputs, *x.shape[2:]), dtype=x.dtype, memory_format=torch.channels_last)
    nhwc, out = (map_.permute(0, 2, 3, 1).contiguous() for map_ in (x, y))
    bias = x.new_zeros(outputs)
    for part, first, rows in _chunks(nhwc, dilation, max(kernels.shape[1:])):
        products = torch.bmm(winograd_input(nhwc[part], dilation, first, rows), kernels)
        winograd_output(list(products.unbind()), bias, None, 1.0, out[part], dilation, first, rows)
    return y


def _kernel_gradient(dy: Tensor, x: Tensor, dilation: int) -> Tensor:
    """Return the gradient `O x I x 3 x 3` of the kernel of a convolution."""
    given, gradient = (map_.permute(0, 2, 3, 1).contiguous() for map_ in (x, dy))
    outputs, inputs = dy.shape[1], x.shape[1]
    total = x.new_zeros(36, outputs, inputs)
    for part, first, rows in _chunks(given, dilation, max(outputs, inputs)):
        left = winograd_gradient(gradient[part], dilation, first, rows)
        total.baddbmm_(left.transpose(1, 2), winograd_input(given[part], dilation, first, rows))
    return (total.view(36, -1).T @ transforms()[1].to(total)).view(outputs, inputs, 3, 3)


def _kernels(weight: Tensor, transposed: bool = False) -> Tensor:
    """Return the 36 transformed kernels, `36 x O x I`; `transposed` those of the gradient of the input."""
    outputs, inputs = weight.shape[:2]
    matrix = transforms()[1].to(weight)
    return ((matrix.flip(1) if transposed else matrix) @ weight.reshape(-1, 9).T).view(36, outputs, inputs)


def _chunks(nhwc: Tensor, dilation: int, channels: int) -> Iterator[tuple[slice, int, int]]:
    """Yield images, first row and number of rows of tiles that are computed at a time, of a map `N x H x W x C`."""
    images, height, width, _ = nhwc.shape
    rows = tile_count(height, dilation)
    row = 36 * dilation**2 * tile_count(width, dilation) * channels
    some, step = max(1, _CHUNK // (rows * row)), max(1, _CHUNK // row)
    for image in range(0, images, some):
        for first in range(0, rows, step):
            yield slice(image, image + some), first, min(step, rows - first)


def _saves_time(x: Tensor, weight: Tensor, dilation: int, count: int) -> bool:
    """Return whether the tiles take less time than the direct sum, which leaves out the zeros around the map."""
    ratio, work = 1.0, count * weight.shape[0] * weight.shape[1]
    for side in x.shape[2:]:
        tiles = dilation * tile_count(side, dilation)
        work *= tiles
        ratio *= 4 * tiles / (side - min(dilation, side) * 2 / 3)
    # a quarter of the products, and the transforms
    return work >= _LEAST_WORK and ratio < 4 / _TRANSFORMS


def _takes_tiles(x: Tensor, weight: Tensor, dilation: int) -> bool:
    """Return whether a convolution in training runs by Winograd's algorithm."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or x.dim() != 4 or not _has_kernels():
        return False
    if any(t.device.type != "cpu" or t.dtype != torch.float32 for t in (x, weight)):
        return False
    tiles = x.shape[0] * dilation**2 * tile_count(x.shape[2], dilation) * tile_count(x.shape[3], dilation)
    return tiles >= _LEAST_TILES and _saves_time(x, weight, dilation, x.shape[0])


@cache
def _has_kernels() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("seamseg::winograd_gradient", "CPU")


def is_suitable(conv: nn.Module) -> TypeGuard[FusedConv2d]:
    """Return whether a layer is a :class:`FusedConv2d` that :class:`WinogradConv2d` computes faster."""
    return type(conv) is FusedConv2d and _fits(conv)


def _fits(conv: FusedConv2d | nn.Conv2d) -> bool:
    return (
        tuple(conv.weight.shape[2:]) == (3, 3)
        and min(conv.weight.shape[:2]) >= LEAST_CHANNELS
        and all(channels % _LANES == 0 for channels in conv.weight.shape[:2])
        and conv.groups == 1
        and tuple(conv.stride) == (1, 1)
        and conv.dilation[0] == conv.dilation[1]
        and tuple(conv.padding) == tuple(conv.dilation)
    )
