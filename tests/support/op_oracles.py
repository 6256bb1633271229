"""The ops in their plainest form, straight from the contract: slow, obvious, and written apart from the package."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def roi_sampling(
    x: Tensor, boxes: Tensor, index: Tensor, out_size: tuple[int, int], interpolation: str, padding: str
) -> tuple[Tensor, Tensor]:
    """One sample at a time; differentiable."""
    height, width = x.shape[2:]

    def pixel(n: int, i: int, j: int) -> Tensor:
        if padding == "zero" and not (0 <= i < height and 0 <= j < width):
            return x[n, :, 0, 0] * 0
        return x[n, :, min(max(i, 0), height - 1), min(max(j, 0), width - 1)]

    rows, inside = [], []
    for (y0, x0, y1, x1), n in zip(boxes.tolist(), index.tolist()):
        for i in range(out_size[0]):
            for j in range(out_size[1]):
                sy = y0 + (i + 0.5) / out_size[0] * (y1 - y0)
                sx = x0 + (j + 0.5) / out_size[1] * (x1 - x0)
                inside.append(0 <= sy < height and 0 <= sx < width)
                if interpolation == "nearest":
                    rows.append(pixel(n, math.floor(sy), math.floor(sx)))
                    continue
                ky, kx = math.floor(sy - 0.5), math.floor(sx - 0.5)
                fy, fx = sy - 0.5 - ky, sx - 0.5 - kx
                rows.append(
                    pixel(n, ky, kx) * ((1 - fy) * (1 - fx))
                    + pixel(n, ky, kx + 1) * ((1 - fy) * fx)
                    + pixel(n, ky + 1, kx) * (fy * (1 - fx))
                    + pixel(n, ky + 1, kx + 1) * (fy * fx)
                )
    shape = (len(boxes), *out_size)
    samples = torch.stack(rows).view(*shape, x.shape[1]) if rows else x.new_zeros(*shape, x.shape[1])
    return samples.permute(0, 3, 1, 2), torch.tensor(inside, dtype=torch.bool).view(shape)


def upsample(logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> Tensor:
    """The whole upsampled tensor, cut to the valid size."""
    full = functional.interpolate(logits[None], size=padded_size, mode="bilinear", align_corners=False)[0]
    return full[:, : valid_size[0], : valid_size[1]]


def activate(z: Tensor, activation: str, param: float) -> Tensor:
    """leaky_relu, elu or nothing."""
    if activation == "leaky_relu":
        return torch.where(z > 0, z, z * param)
    if activation == "elu":
        return torch.where(z > 0, z, param * (z.clamp(max=0).exp() - 1))
    return z


def abn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str,
    param: float,
    inplace: bool,
    statistics: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm and activation from their definition; batch statistics unless others are given."""
    axes = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    mean, var = (x.mean(axes), x.var(axes, unbiased=False)) if statistics is None else statistics
    gamma = weight.abs() + eps if inplace else weight
    x_hat = (x - mean.view(shape)) / torch.sqrt(var.view(shape) + eps)
    return activate(x_hat * gamma.view(shape) + bias.view(shape), activation, param)


def paste_mask(mask_logits: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """The mask sampled on the whole image plane: bilinear, zero padding, > 0.5."""
    cells_y, cells_x = mask_logits.shape
    y0, x0, y1, x1 = box.tolist()
    per_pixel_y, per_pixel_x = cells_y / (y1 - y0), cells_x / (x1 - x0)
    corners = [-y0 * per_pixel_y, -x0 * per_pixel_x, (size[0] - y0) * per_pixel_y, (size[1] - x0) * per_pixel_x]
    inverted = torch.tensor([corners], dtype=torch.float64)
    plane = mask_logits.double().sigmoid()[None, None]
    return roi_sampling(plane, inverted, torch.zeros(1, dtype=torch.long), size, "bilinear", "zero")[0][0, 0] > 0.5
