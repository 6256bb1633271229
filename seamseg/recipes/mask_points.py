"""Refinement of mask edges point by point (PointRend, Kirillov et al. 2020, arXiv 1912.08193).

A small network predicts the mask at single points from the finest level of the pyramid and the coarse mask. In training
the points are sampled where the coarse mask is uncertain; at inference the mask is enlarged step by step, and in each
step its most uncertain cells are predicted anew.

Different from the paper, the coarse mask is that of the mask branch (28 x 28) rather than of a head of 7 x 7, the
network is given its logit of the region's class only, and predicts the difference to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.components import register
from seamseg.config.sections import key
from seamseg.models.heads.custom import HeadContext
from seamseg.models.heads.refinement import MaskRefinement, Regions, RegionTruth
from seamseg.models.heads.roi_targets import pixel_loss
from seamseg.ops.roi_sampling import roi_features

OVERSAMPLING = 3
"""Candidates for each point of a region in training, of which the most uncertain ones are taken."""
UNCERTAIN_SHARE = 0.75
"""Fraction of the points of a region that are chosen for their uncertainty; the others are uniform."""
_LAYERS = 3
_CHUNK = 32
"""Regions that are refined together at inference; bounds the memory."""


@dataclass(frozen=True)
class PointKeys:
    """Keys of the section `[mask_refinement points]`."""

    points: int = key("points of each mask in training", 196, minimum=1, maximum=10_000)
    subdivisions: int = key(
        "how often masks are doubled in size at inference; each time as many cells are predicted as a coarse mask has",
        2,
        minimum=0,
        maximum=4,
    )
    channels: int = key("channels of the three hidden layers", 256, minimum=1, maximum=65_536)


class PointOutputs(NamedTuple):
    """Points of regions in training, `P x n x 2` (`y, x` in pixels of the image), and their logits `P x n`."""

    places: Tensor
    logits: Tensor


@register("mask_refinement", "points", keys=PointKeys)
class PointHead(MaskRefinement):
    """Predicts the uncertain points of a mask from the finest level (PointRend, arXiv 1912.08193)."""

    class_layers = ("output",)

    def __init__(self, keys: PointKeys, context: HeadContext) -> None:
        super().__init__(keys, context)
        self.points = keys.points
        self.subdivisions = keys.subdivisions
        width, channels = context.width, keys.channels
        # each layer is given the coarse prediction
        self.layers = nn.ModuleList(nn.Linear((channels if i else width) + 1, channels) for i in range(_LAYERS))
        self.output = nn.Linear(channels + 1, context.num_thing)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.output.weight, std=0.001)
        nn.init.zeros_(self.output.bias)

    def logits(self, regions: Regions, points: Tensor) -> Tensor:
        """Return the logits `P x n` (float32 at least) at points `P x n x 2`, `(y, x)` in fractions of the boxes."""
        count, number = points.shape[:2]
        fine, boxes = regions.levels[0], _as_boxes(places_of(regions, points)).reshape(-1, 4)
        index = regions.image[:, None].expand(count, number).reshape(-1)
        sampled = roi_features([fine], boxes, index, torch.zeros_like(index), regions.padded_size, (1, 1))
        coarse = sample_coarse(regions.coarse, points)
        given = coarse.reshape(-1, 1).to(sampled.dtype)
        x = sampled.flatten(1)
        for layer in self.layers:
            x = functional.relu(layer(torch.cat((x, given), dim=1)))
        rows = torch.cat((x, given), dim=1)
        rows = rows.view(count, number, rows.shape[1])
        weight = self.output.weight[regions.classes].to(rows.dtype)
        bias = self.output.bias[regions.classes]
        difference = torch.bmm(rows, weight[:, :, None])[:, :, 0].to(coarse.dtype)
        return coarse + difference + bias[:, None].to(coarse.dtype)

    def forward(self, regions: Regions) -> PointOutputs:
        """Sample points of each region, and predict their logits."""
        with torch.no_grad():
            points = sample_points(regions.coarse.detach(), self.points)
        return PointOutputs(places_of(regions, points), self.logits(regions, points))

    def loss(self, outputs: PointOutputs, truth: RegionTruth) -> Tensor:
        """Return the mean binary cross-entropy of the points that are not ignored."""
        targets = truth.inside(_as_boxes(outputs.places), (1, 1))
        return pixel_loss(outputs.logits.float(), targets.flatten(1))[0]

    def refine(self, regions: Regions) -> Tensor:
        """Return mask logits `P x (2^s H) x (2^s W)`, with s subdivisions."""
        parts = []
        for start in range(0, max(regions.boxes.shape[0], 1), _CHUNK):
            parts.append(self._refine(regions.part(slice(start, start + _CHUNK))))
        return torch.cat(parts)

    def _refine(self, regions: Regions) -> Tensor:
        logits = regions.coarse
        height, width = regions.coarse.shape[1:]
        number = height * width
        for _ in range(self.subdivisions):
            height, width = 2 * height, 2 * width
            enlarged = functional.interpolate(logits[:, None], scale_factor=2.0, mode="bilinear", align_corners=False)
            cells = enlarged.reshape(-1, height * width)
            chosen = torch.topk(-cells.abs(), number, dim=1).indices
            row, column = torch.div(chosen, width, rounding_mode="floor"), chosen % width
            points = torch.stack(((row + 0.5) / height, (column + 0.5) / width), dim=2)
            cells = cells.scatter(1, chosen, self.logits(regions, points.to(regions.boxes.dtype)))
            logits = cells.view(-1, height, width)
        return logits


def places_of(regions: Regions, points: Tensor) -> Tensor:
    """Return `(y, x)` in pixels of the image of points `P x n x 2` in fractions of their boxes."""
    low, high = regions.boxes[:, None, :2], regions.boxes[:, None, 2:]
    return low + points * (high - low)


def sample_coarse(coarse: Tensor, points: Tensor) -> Tensor:
    """Return the values `P x n` of maps `P x H x W` at points `P x n x 2` in fractions of the map, bilinear."""
    count, number = points.shape[:2]
    size = (int(coarse.shape[1]), int(coarse.shape[2]))
    places = torch.stack((points[..., 0] * size[0], points[..., 1] * size[1]), dim=-1)
    index = torch.arange(count, device=points.device)[:, None].expand(count, number).reshape(-1)
    if count == 0:
        return coarse.reshape(0, number)
    boxes = _as_boxes(places).reshape(-1, 4)
    values = roi_features([coarse[:, None]], boxes, index, torch.zeros_like(index), size, (1, 1))
    return values.reshape(count, number)


def sample_points(coarse: Tensor, number: int) -> Tensor:
    """Return random points `P x number x 2` of regions: most where the mask is uncertain, the others uniform.

    Parameters
    ----------
    coarse : mask logits `P x H x W`
    number : number of points of each region
    """
    count, device = coarse.shape[0], coarse.device
    uncertain = int(UNCERTAIN_SHARE * number)
    candidates = torch.rand((count, OVERSAMPLING * number, 2), device=device)
    order = sample_coarse(coarse, candidates).abs().topk(uncertain, dim=1, largest=False).indices
    chosen = candidates.gather(1, order[..., None].expand(-1, -1, 2))
    return torch.cat((chosen, torch.rand((count, number - uncertain, 2), device=device)), dim=1)


def _as_boxes(places: Tensor) -> Tensor:
    """Return points `P x n x 2` as empty boxes `P x n x 4`, whose only sample is the point."""
    return torch.cat((places, places), dim=-1)
