"""Conversion of in-place ABN to batch norm and activation, which any exporter knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.inplace_abn._convert import ResidualABN, ResidualABNSync, copied
from seamseg.inplace_abn._equality import check_equal
from seamseg.inplace_abn._tracing import Network
from seamseg.ops.norm import ABN, InPlaceABN, InPlaceABNSync, has_hooks

_KINDS = (ABN, InPlaceABN, InPlaceABNSync, ResidualABN, ResidualABNSync)
_NORM_AFTER: dict[type[nn.Module], type[nn.modules.batchnorm._BatchNorm]] = {
    nn.Linear: nn.BatchNorm1d,
    nn.Conv1d: nn.BatchNorm1d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
"""Norms after layers whose output is not `N x C x H x W`."""
_ACTIVATIONS: dict[str, Callable[[float], nn.Module]] = {
    "leaky_relu": lambda slope: nn.LeakyReLU(slope, inplace=True),
    "elu": lambda alpha: nn.ELU(alpha, inplace=True),
    "relu": lambda _: nn.ReLU(inplace=True),
    "identity": lambda _: nn.Identity(),
}


def to_batchnorm(module: nn.Module, *, sync: bool = False, example: Any = None) -> nn.Module:
    """Return a copy of a network with batch norm and an activation in the place of ABN and in-place ABN.

    Each layer becomes `nn.Sequential(norm, activation)`; without an activation (identity) the norm alone. The norm is
    `BatchNorm2d`; after a linear layer or a one- or three-dimensional convolution in the same `nn.Sequential`,
    `BatchNorm1d` or `BatchNorm3d`. The scale of in-place ABN, `|weight| + eps`, becomes the weight. State-dict keys of
    layers with an activation get ".0" before the name of the tensor: `bn1.weight` becomes `bn1.0.weight`.

    The copy computes the same function up to rounding, except that a batch norm in training mode refuses a batch with
    one value for each channel.

    Parameters
    ----------
    module : any network with layers :class:`ABN`, :class:`InPlaceABN` or :class:`InPlaceABNSync`; not changed
    sync : `SyncBatchNorm` in the place of :class:`InPlaceABNSync`, with its process group
    example : input of the network (a tuple for several): outputs, gradients and running statistics of the copy are
        compared with the original, in both modes and in float64

    Raises
    ------
    ValueError
        if a layer has hooks, or a class of its own, derived from these; if the results for `example` differ
    """
    network = Network(copied(module))
    groups = [getattr(layer, "group", None) for _, layer in Network(module).slots()]
    before = _layers_before(network.root)
    made: dict[int, nn.Module] = {}
    for (name, layer), group in zip(list(network.slots()), groups):
        if not isinstance(layer, ABN):
            continue
        if type(layer) not in _KINDS:
            raise ValueError(f"to_batchnorm: {name}: {type(layer).__name__} is a class of its own")
        if has_hooks(layer):
            raise ValueError(f"to_batchnorm: {name}: the layer has hooks, which the norm would not run")
        if id(layer) not in made:
            kind = _NORM_AFTER.get(type(before.get(id(layer), layer)), nn.BatchNorm2d)
            if sync and isinstance(layer, InPlaceABNSync):
                kind = nn.SyncBatchNorm
            made[id(layer)] = _batchnorm(layer, kind, group)
        network.replace(name, made[id(layer)])
    if example is not None:
        check_equal("to_batchnorm", module, network.root, example)
    return network.root


class BatchNormSum(nn.Sequential):
    """`activation(norm(x) + residual)`: what becomes of the last norm of a residual block."""

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        """Map two `N x C x ...` to the same shape."""
        norm, activation = self
        y: Tensor = activation(norm(x) + residual)
        return y


@torch.no_grad()
def _batchnorm(layer: ABN, kind: type[nn.modules.batchnorm._BatchNorm], group: Any) -> nn.Module:
    """Return a norm with the parameters and buffers of a layer, and its activation."""
    norm = kind(layer.num_features, layer.eps, layer.momentum, False, False)
    norm.affine, norm.track_running_stats = layer.affine, layer.track_running_stats
    if isinstance(layer, InPlaceABN) and layer.weight is not None:
        layer.weight.copy_(layer.weight.double().abs() + layer.eps)
    norm.weight, norm.bias = layer.weight, layer.bias  # type: ignore[assignment]
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(norm, buffer, getattr(layer, buffer))
    if isinstance(norm, nn.SyncBatchNorm):
        norm.process_group = group
    activation = _ACTIVATIONS[layer.activation](layer.activation_param)
    result: nn.Module = norm if layer.activation == "identity" else nn.Sequential(norm, activation)
    if isinstance(layer, ResidualABN):
        result = BatchNormSum(norm, activation)
    for part in result.modules():
        part.training = layer.training
    return result


def _layers_before(root: nn.Module) -> dict[int, nn.Module]:
    """Map each layer of an `nn.Sequential`, by its id, to the one before it."""
    found = {}
    for sequence in root.modules():
        if isinstance(sequence, nn.Sequential):
            found.update({id(layer): previous for previous, layer in itertools.pairwise(sequence)})
    return found
