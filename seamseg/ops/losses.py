"""Elementwise losses (SPEC section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check import describe


def smooth_l1(x: Tensor, target: Tensor, sigma: float) -> Tensor:
    """Smooth L1: `.5 sigma² d²` where `|d| < 1/sigma²`, else `|d| - .5/sigma²`, with `d = x - target`.

    Parameters
    ----------
    x, target : floating tensors of one shape
    sigma : where the parabola meets the lines; larger is sharper

    Returns
    -------
    the loss of each element, in the shape of `x`

    Raises
    ------
    ValueError
        if the shapes differ, which broadcasting would hide, or sigma is not positive
    """
    if x.shape != target.shape:
        raise ValueError(f"smooth_l1: x and target must have one shape, got {describe(x)} and {describe(target)}")
    if sigma <= 0:
        raise ValueError(f"smooth_l1: sigma must be positive, got {sigma}")
    return torch.nn.functional.smooth_l1_loss(x, target, reduction="none", beta=1 / sigma**2)
