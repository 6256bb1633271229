"""Painting over a region of a photo with averages of what lies in it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from seamseg.visualize.region import Region, Style


def hide(
    photo: np.ndarray,
    out: np.ndarray,
    region: Region,
    box: tuple[int, int, int, int],
    style: Style,
    cell: int,
    margin: float,
) -> None:
    (y0, x0, y1, x1), (height, width) = box, photo.shape[:2]
    longest = max(y1 - y0, x1 - x0)
    reach = 2 + math.ceil(margin * longest)
    fade = max(1, reach // 2)
    wide = reach + 2 * fade
    top, left, bottom, right = max(0, y0 - wide), max(0, x0 - wide), min(height, y1 + wide), min(width, x1 + wide)

    mask = torch.zeros((bottom - top, right - left))
    inside = region.mask[y0 - region.corner[0] : y1 - region.corner[0], x0 - region.corner[1] : x1 - region.corner[1]]
    mask[y0 - top : y1 - top, x0 - left : x1 - left] = torch.from_numpy(np.ascontiguousarray(inside, np.float32))
    # a mean of radius `fade` over what was widened by reach + fade is exactly 1 within reach: nothing shines through
    solid = _widen(mask, reach)
    alpha = _mean(_widen(mask, reach + fade), fade)
    alpha[solid > 0] = 1.0

    # torch warns of arrays that may not be written to, as those of pictures
    pixels = torch.from_numpy(photo[top:bottom, left:right].astype(np.float32)).permute(2, 0, 1)
    hidden = _coarse(pixels, solid, cell, style)
    behind = torch.from_numpy(np.ascontiguousarray(out[top:bottom, left:right])).permute(2, 0, 1).float()
    mixed = torch.where(solid > 0, hidden, behind + alpha * (hidden - behind))
    out[top:bottom, left:right] = mixed.add_(0.5).clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()


def _coarse(pixels: torch.Tensor, mask: torch.Tensor, cell: int, style: Style) -> torch.Tensor:
    """The averages over cells of what lies in the mask, drawn at the size of the pixels, `3 x h x w`."""
    height, width = mask.shape
    rows, columns = -(-height // cell), -(-width // cell)
    padding = (0, columns * cell - width, 0, rows * cell - height)
    weighted = functional.pad(torch.cat((pixels * mask, mask[None])), padding)
    sums = weighted.view(4, rows, cell, columns, cell).sum((2, 4))
    # an average over few pixels at the rim would show them: each takes in its neighbours by their number of pixels
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel).expand(4, 1, 3, 3)
    mixed = functional.conv2d(sums[None], kernel, padding=1, groups=4)[0]
    # cells that see nothing of the mask lie in the fading rim: they take the colour nearest by
    while not bool((mixed[3] > 0).all()):
        wider = functional.conv2d(mixed[None], kernel, padding=1, groups=4)[0]
        mixed = torch.where(mixed[3] > 0, mixed, wider)
    colours = mixed[:3] / mixed[3]
    size = [rows * cell, columns * cell]
    if style == "pixels":
        full = functional.interpolate(colours[None], size, mode="nearest")[0]
    else:
        full = functional.interpolate(colours[None], size, mode="bilinear", align_corners=False)[0]
    return full[:, :height, :width]


def _widen(mask: torch.Tensor, radius: int) -> torch.Tensor:
    """1 where a 1 is not farther than `radius` along both axes."""
    return (_window_sums(mask, radius) > 0.5).float()


def _mean(mask: torch.Tensor, radius: int) -> torch.Tensor:
    """Mean over squares, the border repeated outwards."""
    full = functional.pad(mask[None, None], (radius,) * 4, mode="replicate")[0, 0]
    side = 2 * radius + 1
    return (_window_sums(full, radius)[radius:-radius, radius:-radius] / side**2).float()


def _window_sums(values: torch.Tensor, radius: int) -> torch.Tensor:
    """Sums over squares of `2 * radius + 1`, by running sums (float64, exact for whole numbers)."""
    height, width = values.shape
    sums = functional.pad(values.double(), (radius + 1, radius) * 2).cumsum(0).cumsum(1)
    side = 2 * radius + 1
    bottom, top = sums[side:], sums[:-side]
    return (bottom[:, side:] - bottom[:, :-side] - top[:, side:] + top[:, :-side])[:height, :width]
