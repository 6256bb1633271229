"""The crop-aware bounding box loss (Porzi, Rota Bulò and Kontschieder 2021, arXiv 2012.07717).

A thing that the border of a training crop cuts off has a box that ends there, while the thing does not. Every box that
equals it within the crop is consistent with what is visible: sides on a border where the image continues may lie
anywhere beyond it. The loss of a prediction is the smallest one among all consistent boxes, so that predictions which
extend beyond the crop cost nothing for it, and others as much as a box that ends at the border.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seamseg.components import BoxSamples, box_loss
from seamseg.ops.boxes import MIN_ANCHOR_SIDE, smooth_l1

_Pair = tuple[Tensor, Tensor]
_STEPS, _ROUNDS = 17, 5
"""Sides of a box that are compared at once, and how often the search continues between the neighbours of the best: the
error of the logarithm of the side is below a thousandth of the interval."""


@box_loss("cabb")
def crop_aware_loss(samples: BoxSamples, keys: Any) -> Tensor:
    """Return the smooth L1 loss of the best box that equals the target within the crop (cabb, arXiv 2012.07717)."""
    given = (samples.predicted, samples.codes, samples.boxes, samples.targets, samples.cut)
    codes = consistent_codes(*given, samples.sigma, samples.weights)
    return smooth_l1(samples.predicted, codes, samples.sigma)


setattr(crop_aware_loss, "needs_crops", True)  # noqa: B010  # read by the check of the configuration


@torch.no_grad()
def consistent_codes(
    predicted: Tensor,
    codes: Tensor,
    anchors: Tensor,
    targets: Tensor,
    cut: Tensor,
    sigma: float,
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
) -> Tensor:
    """Return the codes of the consistent boxes whose smooth L1 loss is the smallest.

    For each axis, a target of visible centre `c` and side `s` of which one or both ends are cut becomes a box of side
    `s + e` with `e >= 0`, whose centre is `c + e / 2` if only the end with the larger coordinate is cut, `c - e / 2` if
    only the other one is, and any centre between the two if both are. The best centre of an extension is the nearest
    to the predicted one, and the best extension lies between those that match the predicted centre and the predicted
    side; it is found by a search over the logarithm of the side in that interval, of any length: predicted sides are
    not limited as in decoding.

    Parameters
    ----------
    predicted : predicted codes `M x 4`
    codes : codes of the targets, `M x 4`; returned where no side is cut
    anchors, targets : the boxes `M x 4` that the codes are relative to, and the visible boxes
    cut : bool `M x 4`, see :class:`seamseg.models.heads.box_loss.BoxSamples`
    sigma : `1/sigma²` is the difference from which the smooth L1 loss is linear
    weights : factors of the four numbers of a code

    Returns
    -------
    `M x 4`, without a graph: at the minimum, the gradient of the loss is that for a fixed box
    """
    axes = []
    for axis in (0, 1):
        pairs = [(values[:, axis], values[:, axis + 2]) for values in (predicted, anchors, targets, cut)]
        axes.append(_axis_codes(pairs[0], pairs[1], pairs[2], pairs[3], (weights[axis], weights[axis + 2]), sigma))
    found = torch.stack([part for parts in zip(*axes) for part in parts], dim=1)
    is_cut = cut[:, :2] | cut[:, 2:]
    return torch.where(torch.cat((is_cut, is_cut), dim=1), found, codes)


def _axis_codes(
    predicted: _Pair, anchor: _Pair, target: _Pair, cut: _Pair, weights: tuple[float, float], sigma: float
) -> _Pair:
    """Return the codes, `M` each, of centre and side along an axis; the boxes and `cut` are given by their two ends."""
    side, visible = ((high - low).clamp(min=MIN_ANCHOR_SIDE) for low, high in (anchor, target))
    middle, centre = ((low + high) / 2 for low, high in (anchor, target))
    shift = middle + predicted[0] / weights[0] * side
    before, after = cut
    offset = 2 * (shift - centre)
    of_centre = torch.where(before & after, offset.abs(), torch.where(after, offset, -offset)).clamp(min=0)
    # the growth of the visible side, as a logarithm, that matches the predicted centre and the predicted side
    code = (visible / side).log()
    ends = torch.log1p(of_centre / visible), predicted[1] / weights[1] - code
    low, high = (bound(*ends).clamp(min=0) for bound in (torch.minimum, torch.maximum))

    first, last = torch.where(before, -0.5, 0.5)[:, None], torch.where(after, 0.5, -0.5)[:, None]
    fractions = torch.linspace(0, 1, _STEPS, dtype=low.dtype, device=low.device)
    for _ in range(_ROUNDS):
        growth = low[:, None] + (high - low)[:, None] * fractions
        extension = visible[:, None] * growth.expm1()
        bounds = [centre[:, None] + part * extension for part in (first, last)]
        shifts = (shift[:, None].clamp(bounds[0], bounds[1]) - middle[:, None]) / side[:, None] * weights[0]
        scales = (code[:, None] + growth) * weights[1]
        losses = [smooth_l1(p[:, None].expand_as(q), q, sigma) for p, q in zip(predicted, (shifts, scales))]
        best = (losses[0] + losses[1]).argmin(dim=1, keepdim=True)
        low = growth.gather(1, (best - 1).clamp(min=0))[:, 0]
        high = growth.gather(1, (best + 1).clamp(max=_STEPS - 1))[:, 0]
    return shifts.gather(1, best)[:, 0], scales.gather(1, best)[:, 0]
