"""Loss max-pooling: pixels weighted by their loss (Rota Bulo, Neuhold and Kontschieder 2017, arXiv 1704.02966)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.components import SemanticImage, key, loss
from seamseg.maps.panoptic_map import VOID


@dataclass(frozen=True)
class MaxPoolingKeys:
    """Options of loss max-pooling."""

    power: float = key(
        "power p: with 1, all pixels with the largest losses count equally; the larger, the nearer to the mean of all",
        1.7,
        minimum=1,
        maximum=1000,
    )
    support: float | None = key(
        "fraction of the pixels that carry weight, at least; empty for no bound", 0.25, above=0, maximum=1
    )


@loss("max_pooling", keys=MaxPoolingKeys)
def max_pooling(image: SemanticImage, keys: MaxPoolingKeys) -> Tensor:
    """Return the loss max-pooling of the cross-entropies of an image."""
    return max_pooled_loss(image.cross_entropy[None], (image.target != VOID)[None], keys.power, keys.support)[0]


def max_pooled_loss(losses: Tensor, valid: Tensor, power: float, support: float | None = None) -> Tensor:
    """Compute the loss max-pooling of Rota Bulo, Neuhold and Kontschieder (CVPR 2017, arXiv 1704.02966).

    It is the largest weighted sum of the losses of the `n` valid pixels of an image over all weights `w >= 0` with
    `||w||_p <= n^(1/p - 1)`, which the weights `1/n` of the plain mean just meet, and `w <= n^(1/p - 1) m^(-1/p)`, so
    that at least `m = support n` pixels carry weight. With p = 1 it is the mean of the `m` largest losses; as p grows
    it becomes the mean of all.

    `losses` are `N x ...`, not negative; pixels where `valid` is False carry no weight. `support` None is no bound.
    Returns `N`, 0 for an image without valid pixels; the gradient of each loss is its weight.
    """
    rows, mask = losses.flatten(1), valid.flatten(1)
    # at the maximum the gradient of the weights themselves does not matter
    weights = _max_pooling_weights(rows.detach(), mask, power, support)
    return (rows * weights).sum(1)


def _max_pooling_weights(losses: Tensor, valid: Tensor, power: float, support: float | None) -> Tensor:
    """Return the weights of :func:`max_pooled_loss`, `N x n`, those of pixels that are not valid are 0.

    The weights are `tau` for the k largest losses and grow with `loss^(1 / (p - 1))` for the others, so that the norm
    is met. With the losses in falling order, k is the first place where they do not exceed `tau`.
    """
    ordered, order = losses.double().masked_fill(~valid, -1).sort(1, descending=True)
    count = valid.sum(1, keepdim=True).clamp(min=1).double()
    least = torch.ones_like(count) if support is None else (support * count).clamp(min=1)
    place = torch.arange(losses.shape[1], dtype=torch.float64, device=losses.device)[None]
    largest = count ** (1 / power - 1) * least ** (-1 / power)
    if power == 1:
        relative = (least - place).clamp(0, 1)
    else:
        # in logarithms: the exponent p / (p - 1) is large for p near 1
        scale = ordered[:, :1].clamp(min=torch.finfo(torch.float32).tiny)
        powers = (ordered.clamp(min=0) / scale).log() * (power / (power - 1))
        rest = powers.flip(1).logcumsumexp(1).flip(1)
        left = (least - place).clamp(min=0).log()
        first = (left + powers <= rest).to(torch.uint8).argmax(1, keepdim=True)
        exponents = (left.gather(1, first) + powers - rest.gather(1, first)) / power
        relative = torch.where(place < first, 1.0, exponents.exp().nan_to_num(0.0))
    relative = torch.where(ordered >= 0, relative, 0.0)
    weights = torch.zeros_like(ordered).scatter_(1, order, relative * largest)
    return weights.to(losses.dtype)
