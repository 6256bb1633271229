"""3x3 convolutions with a quarter of the multiplications, for inference on a CPU (Lavin and Gray, arXiv 1509.09308).

Winograd's F(4x4, 3x3) computes 4x4 outputs from 6x6 inputs with 36 products a pair of channels instead of 144: the
inputs and the kernel are transformed, multiplied by 36 matrix products over the channels, and transformed back. A
dilated convolution is an ordinary one on each of the maps of every `dilation`-th pixel. Rounding errors are
about ten times those of the direct sum.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .activation import activate_
from .fused import FusedConv2d

_CHUNK = 1 << 23
"""Elements of the transformed tiles that are computed at a time."""

LEAST_CHANNELS = 64
"""Convolutions with fewer channels are not faster: the transforms take a constant time a channel."""

_INPUT = torch.tensor(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    dtype=torch.float64,
)
_KERNEL = torch.tensor(
    [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64
) / torch.tensor([24.0, 24, 24, 24, 24, 24], dtype=torch.float64).unsqueeze(1)
_OUTPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], dtype=torch.float64
)


class WinogradConv2d(nn.Module):
    """`act(convolution(x) + bias)` like a :class:`FusedConv2d`, whose parameters it takes; float32 on a CPU only.

    The transformed kernels take four times the memory.

    Parameters
    ----------
    conv : 3x3, stride 1, padding equal to the dilation, without groups: see :func:`is_suitable`
    """

    _input: Tensor
    _output: Tensor

    def __init__(self, conv: FusedConv2d) -> None:
        super().__init__()
        if not is_suitable(conv):
            raise ValueError(f"WinogradConv2d: needs a 3x3 convolution of stride 1 that keeps the size, got {conv}")
        self.dilation = conv.dilation[0]
        self.activation, self.activation_param = conv.activation, conv.activation_param
        outputs, inputs = conv.weight.shape[:2]
        kernel = torch.kron(_KERNEL, _KERNEL) @ conv.weight.detach().double().reshape(outputs * inputs, 9).T
        self.weight = nn.Parameter(
            kernel.float().view(36, outputs, inputs).transpose(1, 2).contiguous(), requires_grad=False
        )
        self.bias = nn.Parameter(conv.bias.detach().clone(), requires_grad=False)
        # pixels far apart make many small images: where they fill few tiles, the direct sum is faster
        self.direct = conv if self.dilation > 8 else None
        self.register_buffer("_input", torch.kron(_INPUT, _INPUT).float(), persistent=False)
        self.register_buffer("_output", torch.kron(_OUTPUT, _OUTPUT).float(), persistent=False)

    def forward(self, x: Tensor, residual: Tensor | None = None, level: int = 0) -> Tensor:
        """Map `N x I x H x W` to `N x O x H x W`, a new tensor; the residual is added before the activation."""
        size, d = (x.shape[2], x.shape[3]), self.dilation
        # every d-th pixel, as images of their own: zeros behind the border are what the convolution pads with
        tiles = [math.ceil(side / (4 * d)) for side in size]
        if self.direct is not None and 5 * tiles[0] * tiles[1] * d * d > size[0] * size[1]:
            y: Tensor = self.direct(x, residual, level)
            return y
        margins = [4 * count * d + d - side for side, count in zip(size, tiles)]
        padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, d, margins[1], d, margins[0]))
        n, height, width, channels = padded.shape
        phases = padded.view(n, height // d, d, width // d, d, channels).permute(0, 2, 4, 1, 3, 5)
        out = x.new_empty((n, d, d, 4 * tiles[0], 4 * tiles[1], self.weight.shape[2]))
        step = max(1, _CHUNK // (36 * n * d * d * tiles[1] * max(self.weight.shape[1:])))
        for row in range(0, tiles[0], step):
            stop = min(row + step, tiles[0])
            out[:, :, :, 4 * row : 4 * stop] = self._rows(phases[:, :, :, 4 * row : 4 * stop + 2])
        y = out.permute(0, 3, 1, 4, 2, 5).reshape(n, 4 * tiles[0] * d, 4 * tiles[1] * d, -1)
        y = y[:, : size[0], : size[1]].permute(0, 3, 1, 2)
        y = y.contiguous(memory_format=torch.channels_last)
        if residual is not None:
            y = y.add_(residual)
        return activate_(y, self.activation, self.activation_param)

    def _rows(self, phases: Tensor) -> Tensor:
        """Convolve `n x d x d x (4 rows + 2) x (4 columns + 2) x I` to `n x d x d x 4 rows x 4 columns x O`."""
        n, d, _, height, width, channels = phases.shape
        rows, columns = (height - 2) // 4, (width - 2) // 4
        tiles = phases.unfold(3, 6, 4).unfold(4, 6, 4).permute(6, 7, 0, 1, 2, 3, 4, 5)
        transformed = (self._input @ tiles.reshape(36, -1)).view(36, -1, channels)
        products = torch.bmm(transformed, self.weight)
        y = (self._output @ products.view(36, -1)).view(4, 4, n, d, d, rows, columns, -1).add_(self.bias)
        return y.permute(2, 3, 4, 5, 0, 6, 1, 7).reshape(n, d, d, 4 * rows, 4 * columns, -1)

    def extra_repr(self) -> str:
        """Return the options for `repr`."""
        _, inputs, outputs = self.weight.shape
        return f"{inputs}, {outputs}, dilation={self.dilation}, {self.activation}({self.activation_param})"


def is_suitable(conv: Any) -> bool:
    """Return whether a layer is a :class:`FusedConv2d` that :class:`WinogradConv2d` computes faster."""
    return (
        isinstance(conv, FusedConv2d)
        and tuple(conv.weight.shape[2:]) == (3, 3)
        and min(conv.weight.shape[:2]) >= LEAST_CHANNELS
        and conv.groups == 1
        and tuple(conv.stride) == (1, 1)
        and conv.dilation[0] == conv.dilation[1]
        and list(conv.padding) == list(conv.dilation)
    )
