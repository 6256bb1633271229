"""Anchor boxes of the region proposal network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class AnchorGenerator:
    """All anchors of a pyramid (SPEC section 4 "Anchors").

    Parameters
    ----------
    strides : pixels of the image between the cells of each level
    scale : side of a square anchor, in strides
    ratios : height over width of the anchors of a cell
    """

    def __init__(self, strides: Sequence[int], scale: float, ratios: Sequence[float]) -> None:
        self.strides = tuple(strides)
        self.scale = scale
        self.ratios = tuple(ratios)
        self._cache: dict[tuple, Tensor] = {}
        self._cells_of: dict[torch.device, list[Tensor]] = {}

    def cell_anchors(self, stride: int) -> Tensor:
        """The anchors of the first cell of a level, float64 `ratios x 4`."""
        rows = []
        for ratio in self.ratios:
            height = stride * self.scale * math.sqrt(ratio)
            width = stride * self.scale * math.sqrt(1 / ratio)
            centre = stride / 2
            rows.append([centre - height / 2, centre - width / 2, centre + height / 2, centre + width / 2])
        return torch.tensor(rows, dtype=torch.float64)

    def __call__(self, shapes: Sequence[tuple[int, int]], device: torch.device | str = "cpu") -> Tensor:
        """Anchors of levels of the given `(height, width)`, `A x 4`; ordered by level, row, column, ratio.

        Raises
        ------
        ValueError
            if there is not one shape for each stride
        """
        if len(shapes) != len(self.strides):
            raise ValueError(f"AnchorGenerator: {len(shapes)} levels, but strides for {len(self.strides)}")
        key = (tuple(shapes), str(device))
        if key not in self._cache:
            if len(self._cache) >= 16:
                self._cache.clear()
            # kept for later calls, which may be of another mode
            with torch.inference_mode(False):
                cells = self._cells(torch.device(device))
                self._cache[key] = torch.cat([self._level(*level) for level in zip(self.strides, shapes, cells)])
        return self._cache[key]

    def _cells(self, device: torch.device) -> list[Tensor]:
        """The anchors of the first cell of each level, in float32: rounded before they are shifted, as the published
        networks saw them. Kept, as a new size of images would otherwise wait for their copy to the device."""
        if device not in self._cells_of:
            self._cells_of[device] = [self.cell_anchors(stride).float().to(device) for stride in self.strides]
        return self._cells_of[device]

    def _level(self, stride: int, shape: tuple[int, int], cell: Tensor) -> Tensor:
        y = torch.arange(shape[0], dtype=torch.float32, device=cell.device) * stride
        x = torch.arange(shape[1], dtype=torch.float32, device=cell.device) * stride
        shift = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).repeat(1, 1, 2)
        return (shift[:, :, None, :] + cell).reshape(-1, 4)
