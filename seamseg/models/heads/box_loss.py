"""What a loss of boxes compares, and the smooth L1 loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seamseg.config.components import register
from seamseg.ops.boxes import smooth_l1


@dataclass(frozen=True)
class ImageBoxes:
    """The ground-truth boxes of an image.

    Attributes
    ----------
    boxes : `G x 4`, within the crop; None for none
    size : `(height, width)` of the crop
    ids : ids of the boxes, int64 `G`
    continues : bool `n x 4` by id, whether the image of a thing continues beyond the top, left, bottom and right border
        of the crop; None for an image that is no crop
    """

    boxes: Tensor | None
    size: tuple[int, int]
    ids: Tensor
    continues: Tensor | None


@dataclass(frozen=True)
class MatchedImage:
    """Anchors or regions of an image with the ground truth that they are matched with.

    Attributes
    ----------
    samples : `M x 4`
    match : int64 `M`, index of the ground-truth box; negative for background
    truth : ground truth of the image
    """

    samples: Tensor
    match: Tensor
    truth: ImageBoxes

    def targets(self) -> tuple[Tensor, Tensor]:
        """Return the matched boxes `M x 4`, and which of their sides the border of the crop cuts, bool `M x 4`."""
        truth = self.truth
        if truth.boxes is None or truth.boxes.shape[0] == 0:
            return self.samples, torch.zeros_like(self.samples, dtype=torch.bool)
        row = self.match.clamp(min=0)
        if truth.continues is None:
            return truth.boxes[row], torch.zeros_like(self.samples, dtype=torch.bool)
        return truth.boxes[row], cut_sides(truth.boxes, truth.size, truth.continues[truth.ids])[row]


@dataclass(frozen=True)
class BoxSamples:
    """What a loss of boxes compares: the anchors or the regions of a batch.

    Codes are `(dy, dx, dh, dw)`, see :func:`seamseg.ops.boxes.encode_boxes`; boxes `(y0, x0, y1, x1)` in pixels.

    Attributes
    ----------
    predicted : codes `M x 4`, float32
    codes : codes of the ground truth, `M x 4`; not used in rows that are background
    images : where they come from
    sigma : `1/sigma²` is the difference from which the smooth L1 loss is linear
    weights : factors of the four numbers of a code
    """

    predicted: Tensor
    codes: Tensor
    images: Sequence[MatchedImage] = field(repr=False)
    sigma: float
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    @cached_property
    def boxes(self) -> Tensor:
        """The boxes that codes are relative to, `M x 4`."""
        return torch.cat([image.samples for image in self.images])

    @property
    def targets(self) -> Tensor:
        """The ground-truth boxes, `M x 4`: the visible parts of what a training crop cuts."""
        return self._matched[0]

    @property
    def cut(self) -> Tensor:
        """Bool `M x 4`: the sides of :attr:`targets` on a border of the crop beyond which the image continues."""
        return self._matched[1]

    @cached_property
    def _matched(self) -> tuple[Tensor, Tensor]:
        boxes, cut = zip(*(image.targets() for image in self.images))
        return torch.cat(boxes), torch.cat(cut)


def cut_sides(boxes: Tensor, size: tuple[int, int], cut: Tensor) -> Tensor:
    """Return which sides of boxes lie on a border of the crop where the image continues, bool `G x 4`.

    Parameters
    ----------
    boxes, size : see :class:`ImageBoxes`
    cut : bool `G x 4`, whether the image of each box continues beyond the top, left, bottom and right border
    """
    on_border = torch.stack((boxes[:, 0] <= 0, boxes[:, 1] <= 0, boxes[:, 2] >= size[0], boxes[:, 3] >= size[1]), dim=1)
    return on_border & cut


@register("box_loss", "smooth_l1")
def smooth_l1_loss(samples: BoxSamples, keys: Any = None) -> Tensor:
    """Return the smooth L1 loss of the codes (docs/contract.md, section 4)."""
    return smooth_l1(samples.predicted, samples.codes, samples.sigma)
