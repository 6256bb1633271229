"""Activations, and convolutions and linear layers on a CPU with them in the same pass, or by Winograd's algorithm.

For inference they call oneDNN through operators that PyTorch has for its compiler, with weights that are packed once.
Those are private: where they are missing or fail, the public functions compute the same.

Winograd's F(4x4, 3x3) (Lavin and Gray, arXiv 1509.09308) computes 4x4 outputs from 6x6 inputs with 36 products a pair
of channels instead of 144: inputs and kernel are transformed, multiplied by 36 matrix products over the channels, and
transformed back. A dilated convolution is an ordinary one on each of the maps of every `dilation`-th pixel. The
polynomials are evaluated at 0, +-3/4, +-3/2 and infinity: rounding errors are half of those with the usual points 0,
+-1, +-2 and infinity, and in a whole network like with the direct sum. The gradient of the input is a convolution as
well; that of the kernel is the sum over the tiles of 36 products of the transformed input and gradient, transformed to
3x3. Tiles are computed as a whole: an input that is NaN or infinite makes all 16 outputs of its tile NaN, and may do so
to the tiles beside it (with a dilation, tiles of every `dilation`-th pixel). The direct sum loses 3x3 pixels.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops._library import define, differentiable_once
from seamseg.ops.reference import winograd as plain
from seamseg.ops.reference.winograd import tile_count, transforms
from seamseg.utils.errors import lacks_memory
from seamseg.utils.output import warn

ACTIVATIONS = ("leaky_relu", "elu", "identity", "relu")
"""Names of the activations; the parameter is the negative slope of leaky_relu and the alpha of elu."""


def check_activation(owner: str, activation: str, param: float, invertible: bool = False) -> None:
    """Require a known activation, and a positive parameter where its inverse is needed."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{owner}: unknown activation {activation!r}, choose one of {', '.join(ACTIVATIONS)}")
    if invertible and activation == "relu":
        raise ValueError(
            f"{owner}: relu cannot be inverted, choose leaky_relu, elu or identity; plain ABN can be followed by it"
        )
    if invertible and activation != "identity" and param <= 0:
        raise ValueError(f"{owner}: {activation} can only be inverted with a positive parameter, got {param}")


def activate(x: Tensor, activation: str, param: float, inplace: bool = False) -> Tensor:
    """Compute `act(x)` as a new tensor (`x` itself for identity), or in place."""
    if activation == "leaky_relu":
        return functional.leaky_relu(x, param, inplace)
    if activation == "elu":
        return functional.elu(x, param, inplace)
    return functional.relu(x, inplace) if activation == "relu" else x


def activation_layer(activation: str, param: float) -> nn.Module:
    """Return the layer of torch that computes an activation in place."""
    if activation == "leaky_relu":
        return nn.LeakyReLU(param, inplace=True)
    if activation == "elu":
        return nn.ELU(param, inplace=True)
    return nn.ReLU(inplace=True) if activation == "relu" else nn.Identity()


_FAILED: set[str] = set()
"""Operators that failed once; they are not called again."""
_FAILURES = (AttributeError, RuntimeError, TypeError)  # NotImplementedError is a RuntimeError

LEAST_CHANNELS = 64
"""Convolutions with fewer channels are not faster: the transforms take a constant time a channel."""

_CHUNK = 1 << 23
"""Elements of the transformed tiles that are computed at a time: 32 MiB; starting threads for fewer takes longer."""

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


class _Fused(nn.Module):
    """Weight, bias and activation of a layer for inference, and the packed weights of oneDNN by number."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        activation: str = "identity",
        activation_param: float = 0.0,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().contiguous(memory_format=memory_format), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.activation = activation
        self.activation_param = activation_param
        self._packed: dict[int, Tensor] = {}
        # the weight that was packed, kept, so that no other takes its memory, and its version
        self._packed_from: tuple[Tensor, int] | None = None

    def _usable(self, kind: str, x: Tensor) -> bool:
        """Return whether oneDNN may compute the layer; drop what was packed if the weight has changed since."""
        if kind in _FAILED or torch.compiler.is_compiling() or torch.is_grad_enabled():
            return False
        if x.device.type != "cpu" or self.weight.device.type != "cpu" or x.numel() == 0 or x.dtype != self.weight.dtype:
            return False
        if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
            return False
        # before the comparison, as it lets other threads run: what one has packed since must not be dropped
        source, version = self.weight.detach(), 0 if self.weight.is_inference() else self.weight._version
        old = self._packed_from
        if old is None or old[0].data_ptr() != source.data_ptr() or old[1] != version:
            self._packed, self._packed_from = {}, (source, version)
        return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and onednn_takes_bf16())

    def __getstate__(self) -> dict[str, Any]:
        # a packed weight cannot be copied or saved
        return {**self.__dict__, "_packed": {}, "_packed_from": None}


def _give_up(kind: str, error: Exception) -> None:
    """Warn that an operator fails, and never call it again."""
    # a lack of memory, which may be over at the next call; or the death of a process, which a signal handler raises
    # at any place
    if lacks_memory(error) or "DataLoader worker" in str(error):
        raise error
    _FAILED.add(kind)
    reason = " ".join(str(error).split())[:120]
    warn(f"PyTorch's fused {kind} fails ({reason}); using unfused operators", stacklevel=4)


class FusedConv2d(_Fused):
    """`act(convolution(x) + bias)`, for inference only: weight `O x I/groups x kh x kw` and bias `O` have no gradient.

    Stride, padding (a number of zeros), dilation and groups are taken from the convolution `like`.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        like: nn.Conv2d,
        activation: str = "identity",
        activation_param: float = 0.0,
    ) -> None:
        super().__init__(weight, bias, activation, activation_param, torch.channels_last)
        self.stride: list[int] = list(like.stride)
        self.padding: list[int] = [int(side) for side in like.padding]
        self.dilation: list[int] = list(like.dilation)
        self.groups: int = like.groups

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map `N x I x H x W` to `N x O x h x w`, a new tensor.

        The residual, of the shape of the result, is added before the activation.
        """
        # torch 2.11 cannot add to a map of one pixel
        if self._usable("convolution", x) and (residual is None or residual.shape[2:].numel() > 1):
            try:
                op = torch.ops.mkldnn
                if 0 not in self._packed:
                    self._packed[0] = op._reorder_convolution_weight(
                        self.weight, self.padding, self.stride, self.dilation, self.groups, list(x.shape)
                    )
                settings = (self._packed[0], self.bias, self.padding, self.stride, self.dilation, self.groups)
                if residual is None and self.activation == "leaky_relu":
                    fused = "leaky_relu", [self.activation_param], ""
                    y: Tensor = op._convolution_pointwise(x, *settings, *fused)
                    return y
                if residual is None:
                    y = op._convolution_pointwise(x, *settings, "none", [], "")
                else:
                    y = op._convolution_pointwise.binary(x, residual, *settings, "add", 1.0, None, [], "")
                return activate(y, self.activation, self.activation_param, inplace=True)
            except _FAILURES as error:
                _give_up("convolution", error)
        y = functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if residual is not None:
            y = y.add_(residual)
        return activate(y, self.activation, self.activation_param, inplace=True)


class FusedLinear(_Fused):
    """`act(x weight^T + bias)`, for inference only: weight `O x I` and bias `O` have no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `K x I` to `K x O`, a new tensor."""
        if self._usable("linear", x):
            op = torch.ops.mkldnn
            try:
                if 0 not in self._packed:
                    self._packed[0] = op._reorder_linear_weight(self.weight, x.shape[0])
                if self.activation == "leaky_relu":
                    fused = "leaky_relu", [self.activation_param], ""
                    y: Tensor = op._linear_pointwise(x, self._packed[0], self.bias, *fused)
                    return y
                y = op._linear_pointwise(x, self._packed[0], self.bias, "none", [], "")
                return activate(y, self.activation, self.activation_param, inplace=True)
            except _FAILURES as error:
                _give_up("linear", error)
        y = functional.linear(x, self.weight, self.bias)
        return activate(y, self.activation, self.activation_param, inplace=True)


class WinogradConv2d(FusedConv2d):
    """A :class:`FusedConv2d` in float32 on a CPU by Winograd's algorithm; see :func:`use_winograd`.

    The transformed kernel takes four times the memory of the kernel, which is kept as well. With `regions` its maps are
    regions of images: their number does not decide how they are computed, nor their bits (but for torch 2.11 on a CPU
    without AVX-512, which rounds by their number).
    """

    regions = False

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map `N x I x H x W` to `N x O x H x W`, see :class:`FusedConv2d`."""
        usable = x.dtype == torch.float32 and self._usable("Winograd", x)
        count = _REGIONS if self.regions else x.shape[0]
        if usable and _saves_time(x, self.weight, self.dilation[0], count):
            try:
                return self._winograd(x, residual)
            except _FAILURES as error:
                _give_up("Winograd", error)
        return super().forward(x, residual)

    def _winograd(self, x: Tensor, residual: Tensor | None) -> Tensor:
        slope = self.activation_param if self.activation == "leaky_relu" else 1.0
        y = torch.empty_like(x[:, :1].expand(-1, self.weight.shape[0], -1, -1), memory_format=torch.channels_last)
        nhwc, out = (map_.permute(0, 2, 3, 1).contiguous() for map_ in (x, y))
        added = None if residual is None else residual.permute(0, 2, 3, 1).contiguous()
        d, op = self.dilation[0], torch.ops.mkldnn
        for part, first, rows in _chunks(nhwc, d, max(self.weight.shape[:2])):
            transformed = winograd_input(nhwc[part], d, first, rows)
            if 36 not in self._packed:
                matrices = _kernels(self.weight.detach().double()).float()
                packed = [op._reorder_linear_weight(matrix, transformed.shape[1]) for matrix in matrices]
                self._packed.update(enumerate(packed, 36))
            kernel = (self._packed[36 + i] for i in range(36))
            products = [op._linear_pointwise(t, m, None, "none", [], "") for t, m in zip(transformed, kernel)]
            residual = None if added is None else added[part]
            winograd_output(products, self.bias, residual, slope, out[part], d, first, rows)
        if self.activation == "leaky_relu":
            return y
        return activate(y, self.activation, self.activation_param, inplace=True)


class TrainedWinogradConv2d(nn.Conv2d):
    """A convolution of a network in training, in float32 on a CPU by Winograd's algorithm, with its gradients.

    Under autocast or a compiler, and where the tiles take longer, it is the direct sum. The backward pass keeps the
    input, as that of the direct sum does.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        eager = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
        narrow = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (input, weight))
        if eager and narrow and bias is None and input.dim() == 4 and _has_kernels():
            d = self.dilation[0]
            tiles = input.shape[0] * d**2 * tile_count(input.shape[2], d) * tile_count(input.shape[3], d)
            if tiles >= _LEAST_TILES and _saves_time(input, weight, d, input.shape[0]):
                y: Tensor = _Convolution.apply(input, weight, d)
                return y
        y = super()._conv_forward(input, weight, bias)
        return y


def use_winograd(net: nn.Module, regions: str | None = None) -> None:
    """Have Winograd's algorithm compute the convolutions of a network that it makes faster, in place.

    In training 3x3 convolutions become :class:`TrainedWinogradConv2d`, in a folded network :class:`WinogradConv2d`;
    `regions` is the name of the part of a folded network whose maps are regions of images, where others stay.
    """
    kinds: dict[type, Any] = {FusedConv2d: WinogradConv2d}
    if regions is None:
        kinds[nn.Conv2d] = TrainedWinogradConv2d
    for name, layer in net.named_modules():
        kind = kinds.get(type(layer))
        if kind is None or (
            kind is TrainedWinogradConv2d and (layer.padding_mode != "zeros" or layer.bias is not None)
        ):
            continue
        conv: Any = layer
        channels = conv.weight.shape[:2]
        if (
            tuple(conv.weight.shape[2:]) == (3, 3)
            and min(channels) >= LEAST_CHANNELS
            and all(count % _LANES == 0 for count in channels)
            and conv.groups == 1
            and tuple(conv.stride) == (1, 1)
            and conv.dilation[0] == conv.dilation[1]
            and tuple(conv.padding) == tuple(conv.dilation)
        ):
            conv.__class__ = kind
            if kind is WinogradConv2d:
                conv.regions = regions is not None and name.startswith(regions)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        return _convolve(x, _kernels(weight).transpose(1, 2), dilation)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, saved: tuple[Any, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), dilation, dweight = saved, ctx.dilation, None
        dx = _convolve(dy, _kernels(weight, transposed=True), dilation) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            given, gradient = (map_.permute(0, 2, 3, 1).contiguous() for map_ in (x, dy))
            outputs, inputs = weight.shape[:2]
            total = x.new_zeros(36, outputs, inputs)
            for part, first, rows in _chunks(given, dilation, max(outputs, inputs)):
                left = winograd_gradient(gradient[part], dilation, first, rows)
                total.baddbmm_(left.transpose(1, 2), winograd_input(given[part], dilation, first, rows))
            pixels = transforms()[1].to(total).T @ total.view(36, -1)
            dweight = pixels.view(3, 3, outputs, inputs).permute(2, 3, 0, 1)
        return dx, dweight, None


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


def _kernels(weight: Tensor, transposed: bool = False) -> Tensor:
    """Return the 36 transformed kernels, `36 x O x I`; `transposed` those of the gradient of the input."""
    matrix, pixels = transforms()[1].to(weight), weight.permute(0, 2, 3, 1).flatten(1, 2)
    return ((matrix.flip(1) if transposed else matrix) @ pixels).transpose(0, 1)


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
        tiles = dilation * math.ceil(side / (4 * dilation))
        work *= tiles
        ratio *= 4 * tiles / (side - min(dilation, side) * 2 / 3)
    # a quarter of the products, and the transforms
    return work >= _LEAST_WORK and ratio < 4 / _TRANSFORMS


@cache
def _has_kernels() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("seamseg::winograd_gradient", "CPU")


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Compute dtypes of a network by name."""


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return a compute dtype by its name; auto is bf16 where it is faster than fp32."""
    if precision == "auto":
        precision = "bf16" if bf16_is_fast(device) else "fp32"
    return PRECISIONS[precision]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context for `[general] precision`: fp32, bf16, fp16, or auto (bf16 where it is fast).

    Weights, statistics and losses stay float32.
    """
    dtype = compute_dtype(precision, device)
    mixed = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype if mixed else torch.bfloat16, enabled=mixed)


def bf16_is_fast(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 faster than float32.

    A CPU does with AMX, or with AVX512-BF16 unless it is Intel's, a GPU from compute capability 8.0. Elsewhere bfloat16
    may still be supported, by conversion to float32 around each operation, and is slower than that: a CPU with AVX-512
    only, a GPU before Ampere.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    # private names, which other releases may lack
    avx, amx = (getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    # virtual machines hide AMX; a convolution with the AVX512-BF16 of such a Xeon took twice as long as in float32
    return bool(amx or (avx and not _is_intel()))


@cache
def _is_intel() -> bool:
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        vendor = platform.processor()
    return "GenuineIntel" in vendor


def onednn_takes_bf16() -> bool:
    """Return whether the operators of oneDNN accept bfloat16 on this CPU, fast or not."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
