"""The activations of ABN layers, their inverses, and their gradients from the output."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS = ("leaky_relu", "elu", "identity", "relu")
"""Names of the activations; the parameter is the negative slope of leaky_relu and the alpha of elu."""


def check_activation(owner: str, activation: str, param: float, invertible: bool = False) -> None:
    """Require a known activation, and a positive parameter where its inverse is needed."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{owner}: unknown activation {activation!r}, choose one of {', '.join(ACTIVATIONS)}")
    if invertible and activation == "relu":
        raise ValueError(
            f"{owner}: relu cannot be inverted, choose leaky_relu, elu or identity; plain ABN can be followed by it"
        )
    if invertible and activation != "identity" and param <= 0:
        raise ValueError(f"{owner}: {activation} can only be inverted with a positive parameter, got {param}")


def activate(x: Tensor, activation: str, param: float) -> Tensor:
    """Compute `act(x)` as a new tensor (`x` itself for identity)."""
    if activation == "leaky_relu":
        return functional.leaky_relu(x, param)
    if activation == "elu":
        return functional.elu(x, param)
    return functional.relu(x) if activation == "relu" else x


def activate_(x: Tensor, activation: str, param: float) -> Tensor:
    """Compute `act(x)` in place."""
    if activation == "leaky_relu":
        return functional.leaky_relu_(x, param)
    if activation == "elu":
        return functional.elu_(x, param)
    return functional.relu_(x) if activation == "relu" else x


def deactivate(y: Tensor, activation: str, param: float) -> Tensor:
    """Compute `z` such that `act(z) = y`, as a new tensor (`y` itself for identity).

    A saturated elu (`y = -alpha`) gives a large finite `z`; its gradient is 0 there, so it has no effect.
    """
    if activation == "leaky_relu":
        return functional.leaky_relu(y, 1 / param)
    if activation == "elu":
        floor = torch.finfo(y.dtype).eps - 1
        return torch.where(y > 0, y, torch.log1p((y / param).clamp_(floor, 0)))
    return y


def activation_gradient(dy: Tensor, y: Tensor, activation: str, param: float) -> Tensor:
    """Compute `dy * act'(z)` from the output `y = act(z)` (`dy` itself for identity)."""
    if activation == "leaky_relu":
        dz: Tensor = torch.ops.aten.leaky_relu_backward(dy, y, param, True)
        return dz
    if activation == "elu":
        dz = torch.ops.aten.elu_backward(dy, param, 1.0, 1.0, True, y)
        return dz
    return dy
