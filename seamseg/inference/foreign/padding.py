"""How padded images become the input of a network of transformers, in torch and in exported graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def padded_input(images: Tensor, valid: Tensor, normalise: Callable[[Tensor], Tensor], square: bool) -> Tensor:
    """Return the network's input, `N x 3 x H x W` float32, of padded images, whatever the padding holds.

    Parameters
    ----------
    images : `N x 3 x H x W` uint8, RGB
    valid : which pixels are no padding, bool `H x W`
    normalise : conversion of bytes to the values of the input
    square : see :class:`seamseg.inference.foreign.families.Family`: the padding is black, for others 0 after the
        normalisation
    """
    if square:
        return normalise(torch.where(valid, images, 0))
    return torch.where(valid, normalise(images), 0.0)
