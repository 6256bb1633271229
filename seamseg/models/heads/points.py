"""Refinement of mask edges point by point (PointRend, Kirillov et al. 2020, arXiv 1912.08193).

A small network predicts the mask at single points from the finest level of the pyramid and the coarse mask. In training
the points are sampled where the coarse mask is uncertain; at inference the mask is enlarged step by step, and in each
step its most uncertain cells are predicted anew.

Different from the paper, the coarse mask is that of the mask branch (28 x 28) rather than of a head of 7 x 7, the
network is given its logit of the region's class only, and predicts the difference to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.sections import Roi
from seamseg.models.heads.roi_targets import ROISample, mask_targets, pixel_loss
from seamseg.ops.roi_sampling import roi_features

OVERSAMPLING = 3
"""Candidates for each point of a region in training, of which the most uncertain ones are taken."""
UNCERTAIN_SHARE = 0.75
"""Fraction of the points of a region that are chosen for their uncertainty; the others are uniform."""
_LAYERS = 3
_CHUNK = 32
"""Regions that are refined together at inference; bounds the memory."""


class PointOutputs(NamedTuple):
    """Points of the leading samples in training, `P x n x 2` (`y, x` in pixels of the image), and logits `P x n`."""

    places: Tensor
    logits: Tensor


class PointSource(NamedTuple):
    """What points are predicted from.

    fine : finest level of the pyramid, `N x C x h x w`
    padded_size : `(height, width)` of the padded images that it comes from
    boxes : regions `P x 4`
    image : int64 `P`, the image of each region
    classes : int64 `P`, the thing class of each region
    coarse : mask logits `P x H x W` of those classes
    """

    fine: Tensor
    padded_size: tuple[int, int]
    boxes: Tensor
    image: Tensor
    classes: Tensor
    coarse: Tensor

    def part(self, rows: slice) -> PointSource:
        """Return some of the regions."""
        return PointSource(self.fine, self.padded_size, *(values[rows] for values in self[2:]))

    def places(self, points: Tensor) -> Tensor:
        """Return `(y, x)` in pixels of the image of points `P x n x 2` in fractions of their boxes."""
        low, high = self.boxes[:, None, :2], self.boxes[:, None, 2:]
        return low + points * (high - low)


class PointHead(nn.Module):
    """Mask logits at points of regions.

    Parameters
    ----------
    config : the section `[roi]`. At each of its `mask_subdivisions` the most uncertain cells, as many as the coarse
        mask has, are predicted
    in_channels : channels of the finest level
    num_things : thing classes
    """

    def __init__(self, config: Roi, in_channels: int, num_things: int) -> None:
        super().__init__()
        self.points = config.mask_points
        self.subdivisions = config.mask_subdivisions
        channels = config.conv_channels
        # each layer is given the coarse prediction
        self.layers = nn.ModuleList(nn.Linear((channels if i else in_channels) + 1, channels) for i in range(_LAYERS))
        self.output = nn.Linear(channels + 1, num_things)

    def forward(self, source: PointSource, points: Tensor) -> Tensor:
        """Return the logits `P x n` (float32 at least) at points `P x n x 2`, `(y, x)` in fractions of the boxes."""
        count, number = points.shape[:2]
        boxes = _as_boxes(source.places(points))
        index = source.image[:, None].expand(count, number).reshape(-1)
        fine = roi_features([source.fine], boxes, index, torch.zeros_like(index), source.padded_size, (1, 1))
        coarse = sample_coarse(source.coarse, points)
        given = coarse.reshape(-1, 1).to(fine.dtype)
        x = fine.flatten(1)
        for layer in self.layers:
            x = functional.relu(layer(torch.cat((x, given), dim=1)))
        rows = torch.cat((x, given), dim=1)
        rows = rows.view(count, number, rows.shape[1])
        weight = self.output.weight[source.classes].to(rows.dtype)
        bias = self.output.bias[source.classes]
        difference = torch.bmm(rows, weight[:, :, None])[:, :, 0].to(coarse.dtype)
        return coarse + difference + bias[:, None].to(coarse.dtype)

    def in_training(self, source: PointSource) -> PointOutputs:
        """Sample points of each region, and predict their logits."""
        with torch.no_grad():
            points = sample_points(source.coarse.detach(), self.points)
        return PointOutputs(source.places(points), self(source, points))

    def refine(self, source: PointSource) -> Tensor:
        """Return mask logits `P x (2^s H) x (2^s W)`, with s subdivisions."""
        parts = []
        for start in range(0, max(source.boxes.shape[0], 1), _CHUNK):
            parts.append(self._refine(source.part(slice(start, start + _CHUNK))))
        return torch.cat(parts)

    def _refine(self, source: PointSource) -> Tensor:
        logits = source.coarse
        height, width = source.coarse.shape[1:]
        number = height * width
        for _ in range(self.subdivisions):
            height, width = 2 * height, 2 * width
            enlarged = functional.interpolate(logits[:, None], scale_factor=2.0, mode="bilinear", align_corners=False)
            cells = enlarged.reshape(-1, height * width)
            chosen = torch.topk(-cells.abs(), number, dim=1).indices
            row, column = torch.div(chosen, width, rounding_mode="floor"), chosen % width
            points = torch.stack(((row + 0.5) / height, (column + 0.5) / width), dim=2)
            cells = cells.scatter(1, chosen, self(source, points.to(source.boxes.dtype)))
            logits = cells.view(-1, height, width)
        return logits


def sample_coarse(coarse: Tensor, points: Tensor) -> Tensor:
    """Return the values `P x n` of maps `P x H x W` at points `P x n x 2` in fractions of the map, bilinear."""
    count, number = points.shape[:2]
    size = (int(coarse.shape[1]), int(coarse.shape[2]))
    places = torch.stack((points[..., 0] * size[0], points[..., 1] * size[1]), dim=-1)
    index = torch.arange(count, device=points.device)[:, None].expand(count, number).reshape(-1)
    if count == 0:
        return coarse.reshape(0, number)
    values = roi_features([coarse[:, None]], _as_boxes(places), index, torch.zeros_like(index), size, (1, 1))
    return values.reshape(count, number)


def sample_points(coarse: Tensor, number: int) -> Tensor:
    """Return random points `P x number x 2` of regions: most where the mask is uncertain, the others uniform.

    Parameters
    ----------
    coarse : mask logits `P x H x W`
    number : of points of each region
    """
    count, device = coarse.shape[0], coarse.device
    uncertain = int(UNCERTAIN_SHARE * number)
    candidates = torch.rand((count, OVERSAMPLING * number, 2), device=device)
    order = sample_coarse(coarse, candidates).abs().topk(uncertain, dim=1, largest=False).indices
    chosen = candidates.gather(1, order[..., None].expand(-1, -1, 2))
    return torch.cat((chosen, torch.rand((count, number - uncertain, 2), device=device)), dim=1)


def point_loss(
    points: PointOutputs,
    samples: Sequence[ROISample | None],
    ids: Sequence[Tensor],
    masks: Iterable[Tensor | None],
    void_is_background: bool,
) -> Tensor:
    """Return the loss of the points of the leading samples of all images, see :func:`pixel_loss`.

    `samples`, `ids` and `masks` are those of each image, see :func:`mask_targets`.
    """
    places = iter(torch.split(points.places, [sample.leading for sample in samples if sample is not None]))
    wanted = []
    for sample, of_things, id_map in zip(samples, ids, masks, strict=True):
        if sample is not None:
            assert id_map is not None
            match = sample.match[: sample.leading]
            wanted.append(point_targets(next(places), match, of_things, id_map, void_is_background))
    return pixel_loss(points.logits.float(), torch.cat(wanted))[0]


def point_targets(places: Tensor, match: Tensor, ids: Tensor, masks: Tensor, void_is_background: bool) -> Tensor:
    """Return the targets `P x n` of points `P x n x 2` of an image; others as for `mask_targets`, with `P` samples."""
    count, number = places.shape[:2]
    match = match[:, None].expand(count, number).reshape(-1)
    return mask_targets(_as_boxes(places), match, ids, masks, (1, 1), void_is_background).view(count, number)


def _as_boxes(places: Tensor) -> Tensor:
    """Return points as empty boxes `K x 4`, whose only sample is the point."""
    return torch.cat((places, places), dim=-1).reshape(-1, 4)
