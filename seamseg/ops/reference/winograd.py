"""The transforms of Winograd's F(4x4, 3x3), in plain torch."""

from __future__ import annotations

import math

import torch
from numpy.polynomial.polynomial import polyfromroots
from torch import Tensor
from torch.nn import functional

MOST_DILATION = 4096
"""Largest dilation, so that numbers of tiles do not overflow."""
_POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)


def transforms() -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrices of input `36 x 36`, kernel `36 x 9` and output `16 x 36`, float64 (Toom and Cook)."""
    points = list(_POINTS)
    others = [[p for p in points if p != point] for point in points]
    inputs = [[*polyfromroots(rest), 0.0] for rest in others] + [[*polyfromroots(points)]]
    kernel = [[p**i / math.prod(p - q for q in rest) for i in range(3)] for p, rest in zip(points, others)]
    outputs = [[p**i for p in points] + [float(i == 3)] for i in range(4)]
    made = (torch.tensor(m, dtype=torch.float64) for m in (inputs, [*kernel, [0.0, 0.0, 1.0]], outputs))
    one, two, three = (torch.kron(m, m) for m in made)
    return one, two, three


def tile_count(size: int, dilation: int) -> int:
    """Return the number of tiles along a side of the maps of every `dilation`-th pixel."""
    if not 1 <= dilation <= MOST_DILATION:
        raise ValueError(f"dilation must be 1 to {MOST_DILATION}, not {dilation}")
    return -(-size // (4 * dilation))


def winograd_input(x: Tensor, dilation: int, first: int, rows: int) -> Tensor:
    """See :func:`seamseg.ops.fused.winograd_input`; arguments are not checked."""
    return _transformed(x, transforms()[0], dilation, first, rows)


def winograd_gradient(dy: Tensor, dilation: int, first: int, rows: int) -> Tensor:
    """See :func:`seamseg.ops.fused.winograd_gradient`; arguments are not checked."""
    return _transformed(dy, transforms()[2].T, dilation, first, rows)


def _transformed(x: Tensor, matrix: Tensor, dilation: int, first: int, rows: int) -> Tensor:
    """Multiply the pixels of each tile, with those around it if the matrix has 36 columns and not 16."""
    d, columns, side = dilation, tile_count(x.shape[2], dilation), math.isqrt(matrix.shape[1])
    # zeros behind the border are what the convolution pads with
    border = (side - 4) // 2 * d
    below, right = (4 * d * (first + rows) + border - x.shape[1], 4 * d * columns + border - x.shape[2])
    padded = functional.pad(x, (0, 0, border, right, border, max(below, 0)))
    padded = padded[:, 4 * d * first : 4 * d * (first + rows) + 2 * border]
    n, height, width, channels = padded.shape
    phases = padded.reshape(n, height // d, d, width // d, d, channels)
    tiles = phases.unfold(1, side, 4).unfold(3, side, 4).permute(6, 7, 0, 2, 1, 4, 3, 5)
    transformed: Tensor = matrix.to(x) @ tiles.reshape(side**2, -1)
    return transformed.view(36, n * d * d * rows * columns, channels)


def winograd_output(
    products: list[Tensor],
    bias: Tensor,
    residual: Tensor | None,
    slope: float,
    out: Tensor,
    dilation: int,
    first: int,
    rows: int,
) -> None:
    """See :func:`seamseg.ops.fused.winograd_output`; arguments are not checked."""
    (n, height, width, channels), d, columns = out.shape, dilation, tile_count(out.shape[2], dilation)
    y = transforms()[2].to(out) @ torch.stack(products).view(36, -1)
    y = y.view(4, 4, n, d, rows, d, columns, channels).permute(2, 4, 0, 3, 6, 1, 5, 7)
    y = y.reshape(n, 4 * d * rows, 4 * d * columns, channels)[:, : height - 4 * d * first, :width] + bias
    here = slice(4 * d * first, 4 * d * first + y.shape[1])
    if residual is not None:
        y = y + residual[:, here]
    out[:, here] = functional.leaky_relu(y, slope)
