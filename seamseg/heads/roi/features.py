"""Where on the pyramid a box is looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.ops.boxes import box_area
from seamseg.ops.roi_sampling import roi_features


@dataclass(frozen=True)
class ROIExtractor:
    """Fixed-size features of boxes from the level that suits their size (SPEC section 4 "FPN level of a box").

    Parameters
    ----------
    roi_size : `(height, width)` of the features of a box
    min_level, num_levels : the levels in use
    canonical_scale, canonical_level : a box of this side (pixels) is looked up on this level
    """

    roi_size: tuple[int, int] = (14, 14)
    min_level: int = 0
    num_levels: int = 4
    canonical_scale: float = 224.0
    canonical_level: int = 2

    def level_of(self, boxes: Tensor) -> Tensor:
        """Index of the level, int64 `K`, of boxes `K x 4`."""
        side = box_area(boxes).clamp(min=0).sqrt()
        level = torch.floor(self.canonical_level + torch.log2(side / self.canonical_scale + 1e-6))
        return level.clamp(self.min_level, self.min_level + self.num_levels - 1).long()

    def __call__(self, levels: Sequence[Tensor], boxes: Tensor, index: Tensor, padded_size: tuple[int, int]) -> Tensor:
        """Sample the features of boxes.

        Parameters
        ----------
        levels : all levels of the pyramid, `N x C x h x w`, finest first
        boxes : `K x 4`
        index : int64 `K`, the image of each box
        padded_size : `(height, width)` of the padded images the levels come from

        Returns
        -------
        `K x C x roi_size`
        """
        used = list(levels[self.min_level : self.min_level + self.num_levels])
        level = self.level_of(boxes) - self.min_level
        return roi_features(used, boxes, index, level, padded_size, self.roi_size)
