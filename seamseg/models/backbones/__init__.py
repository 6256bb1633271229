"""Backbones: ResNet, ResNeXt, WiderResNet and DenseNet, and the feature pyramid on top of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from seamseg.config.components import register
from seamseg.config.sections import Body
from seamseg.models.backbones.base import Backbone, BodyContext, NormFactory
from seamseg.models.backbones.preactivation import (
    DENSENETS,
    RESNEXTS,
    WIDER_RESNETS,
    DenseNet,
    ResNeXt,
    WiderResNet,
    WiderResNetA2,
)
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import ABN, InPlaceABN, InPlaceABNSync
from seamseg.utils.errors import did_you_mean

BN_MODES: dict[str, type[ABN]] = {"standard": ABN, "inplace": InPlaceABN, "sync": InPlaceABNSync}
"""Norms of :func:`norm_factory` by name."""

_FAMILIES: tuple[tuple[Callable[..., Backbone], Mapping[str, Any], str], ...] = (
    (ResNet, RESNETS, ""),
    (ResNeXt, RESNEXTS, ""),
    (WiderResNet, WIDER_RESNETS, ""),
    (WiderResNetA2, WIDER_RESNETS, "_a2"),
    (DenseNet, DENSENETS, ""),
)
"""Class, architectures, and the suffix of the names of its networks."""

BACKBONES: tuple[str, ...] = tuple(name + suffix for _, architectures, suffix in _FAMILIES for name in architectures)
"""Names of the networks of :func:`build_backbone`."""


def build_backbone(
    name: str, norm: NormFactory, *, classes: int = 0, keep_outputs: bool = True, **params: Any
) -> Backbone:
    """Build a backbone with random weights, in training mode.

    Parameters
    ----------
    name : one of :data:`BACKBONES`
    norm : factory of norm + activation layers, for example of :func:`norm_factory`
    classes : outputs of a classifier on the global average, 0 for none
    keep_outputs : return a dict with the output of each stage, not only the last output
    params : further arguments of the class of the network: dilation, input_3x3, dropout, checkpoint, ...; and fields of
        the architecture of a ResNet or ResNeXt, to change its size: blocks, groups, channels, ...

    Raises
    ------
    ValueError
        if the name is unknown, the network has no such parameter, or its value is wrong
    """
    if name not in BACKBONES:
        raise ValueError(
            f"unknown network {name!r}: choose one of {', '.join(BACKBONES)}{did_you_mean(name, BACKBONES)}"
        )
    kind, architecture = next(
        (kind, architectures[name.removesuffix(suffix)])
        for kind, architectures, suffix in _FAMILIES
        if name.endswith(suffix) and name.removesuffix(suffix) in architectures
    )
    sizes = {spec.name for spec in fields(architecture)} if is_dataclass(architecture) else set()
    known = [*list(inspect.signature(kind).parameters)[2:-1], "checkpoint"]
    for key in params:
        if key not in known and key not in sizes:
            raise ValueError(f"{name} has no parameter {key!r}, only {', '.join([*known, *sorted(sizes)])}")
    for key in sizes & params.keys():
        value, default = params.pop(key), getattr(architecture, key)
        value = tuple(value) if isinstance(value, list) else value
        given, wanted = (x if isinstance(x, tuple) else (x,) for x in (value, default))
        alike = type(value) is type(default) and list(map(type, given)) == list(map(type, wanted))
        if not alike or not all(isinstance(x, bool) or x > 0 for x in given):
            raise ValueError(f"{name}: {key} must be like {default!r}, got {value!r}")
        architecture = replace(architecture, **{key: value})
    network = kind(architecture, norm, classes=classes, keep_outputs=keep_outputs, **params)
    network.name = name
    return network


def _configured(keys: Body, context: BodyContext) -> Backbone:
    """Backbones of the original, and ResNets, see :func:`build_backbone`."""
    options = {"keep_outputs": context.keep_outputs, "checkpoint": context.checkpoint}
    return build_backbone(context.name, context.norm, **options, **context.params)


for _name in BACKBONES:
    register("body", _name)(_configured)


def norm_factory(mode: str, activation: str = "leaky_relu", activation_param: float = 0.01) -> NormFactory:
    """Return the factory of the norm + activation layers of a network.

    Parameters
    ----------
    mode : standard (batch norm, then the activation), inplace, or sync (in-place, statistics of all ranks)
    activation : leaky_relu, elu, identity, or relu, which in-place norms cannot invert
    activation_param : negative slope of leaky_relu, alpha of elu

    Raises
    ------
    ValueError
        if mode or activation are unknown, or do not go together
    """
    if mode not in BN_MODES:
        raise ValueError(f"unknown norm {mode!r}: choose one of {', '.join(BN_MODES)}{did_you_mean(mode, BN_MODES)}")
    factory: NormFactory = partial(BN_MODES[mode], activation=activation, activation_param=activation_param)
    factory(1)  # checks the activation
    return factory
