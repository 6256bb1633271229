"""The ops in their plainest form, straight from the contract: slow, obvious, and written apart from the package."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def iou(a: Tensor, b: Tensor) -> float:
    """IoU of two boxes of 4 numbers."""
    height = max(min(float(a[2]), float(b[2])) - max(float(a[0]), float(b[0])), 0)
    width = max(min(float(a[3]), float(b[3])) - max(float(a[1]), float(b[1])), 0)
    area = [(float(c[2]) - float(c[0])) * (float(c[3]) - float(c[1])) for c in (a, b)]
    union = area[0] + area[1] - height * width
    return height * width / union if union else math.nan


def nms(boxes: Tensor, scores: Tensor, threshold: float, n_max: int = -1, groups: Tensor | None = None) -> list[int]:
    """Greedy suppression, one box after the other."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))
    kept: list[int] = []
    for i in order:
        rivals = [j for j in kept if groups is None or groups[j] == groups[i]]
        if n_max > 0 and len(rivals) >= n_max:
            continue
        if not any(iou(boxes[j].double(), boxes[i].double()) >= threshold for j in rivals):
            kept.append(i)
    return kept


def crowd_overlap(boxes: Tensor, mask: Tensor) -> list[float]:
    """Crowd pixels in the truncated box over the box's area, by slicing; proper boxes only."""
    result = []
    for y0, x0, y1, x1 in boxes.tolist():
        cut = [max(int(v), 0) for v in (y0, x0, y1, x1)]
        count = int((mask[cut[0] : cut[2], cut[1] : cut[3]] != 0).sum())
        area = (y1 - y0) * (x1 - x0)
        result.append(count / area if area else math.nan)
    return result


def extract_boxes(id_map: Tensor, n: int) -> Tensor:
    """Bounding boxes by looking for each id."""
    layers = id_map if id_map.dim() == 3 else id_map[None]
    boxes = torch.full((n, 4), -1.0)
    for i in range(n):
        _, y, x = (layers == i).nonzero(as_tuple=True)
        if len(y):
            boxes[i] = torch.tensor([y.min(), x.min(), y.max() + 1, x.max() + 1], dtype=torch.float32)
    return boxes


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


def box_filter_pool(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Average pooling and replicate padding by the native kernels, every window summed anew."""
    k = [min(window[0], x.shape[2]), min(window[1], x.shape[3])]
    before = [(k[0] - 1) // 2, (k[1] - 1) // 2]
    after = [k[0] - 1 - before[0], k[1] - 1 - before[1]]
    pooled = functional.avg_pool2d(x, k, stride=1)
    return functional.pad(pooled, (before[1], after[1], before[0], after[0]), mode="replicate")


def upsample(logits: Tensor, padded_size: tuple[int, int], valid_size: tuple[int, int]) -> Tensor:
    """The whole upsampled tensor, cut to the valid size."""
    full = functional.interpolate(logits[None], size=padded_size, mode="bilinear", align_corners=False)[0]
    return full[:, : valid_size[0], : valid_size[1]]


def ohem_loss(scores: Tensor, target: Tensor, ohem: float | None) -> Tensor:
    """Mean of the largest per-pixel losses of one image."""
    losses = functional.cross_entropy(scores[None], target[None], ignore_index=255, reduction="none").flatten()
    if ohem is None:
        return losses.mean()
    return losses.sort(descending=True).values[: math.ceil(ohem * len(losses))].mean()


def smooth_l1(x: Tensor, target: Tensor, sigma: float) -> Tensor:
    """The two branches, written out."""
    d = (x - target).abs()
    return torch.where(d < 1 / sigma**2, 0.5 * sigma**2 * d**2, d - 0.5 / sigma**2)


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
