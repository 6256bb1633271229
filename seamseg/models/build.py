"""The backbones by name; the network of a configuration, and its training module."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from seamseg.config import Config
from seamseg.config.components import Component, register
from seamseg.config.kinds import SEAMLESS
from seamseg.config.sections import Body as BodyKeys
from seamseg.config.sections import General
from seamseg.maps.predictions import name_problem
from seamseg.models.backbones.base import FPN, Backbone, Body, BodyContext, FPNBody, NormFactory
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
from seamseg.models.custom import CustomNetwork, Head, HeadContext, NetworkContext, WholeNetwork, loss_weight
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.rpn import RPNHead
from seamseg.models.heads.semantic import SemanticHead, SemanticLoss
from seamseg.models.network import Network, TrainingModule
from seamseg.models.panoptic import PanopticNet
from seamseg.models.panoptic_inference import NetworkOptions
from seamseg.models.semantic import DeeplabV3, SemanticNet, SemanticOptions
from seamseg.ops.fused import use_winograd
from seamseg.ops.norm import ABN, ActivatedGroupNorm, ActivatedIdentity, InPlaceABN, InPlaceABNSync
from seamseg.utils.errors import InputError, did_you_mean, instance_of, named_errors

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
    checkpoint = params.pop("checkpoint", False)
    return _configured(None, BodyContext(norm, name, {"classes": classes, **params}, checkpoint, keep_outputs))


def _configured(keys: BodyKeys | None, context: BodyContext) -> Backbone:
    """Backbones of the original, and ResNets, see :func:`build_backbone`."""
    name, params = context.name, dict(context.params)
    if name not in BACKBONES:
        raise ValueError(
            f"unknown network {name!r}: choose one of {', '.join(BACKBONES)}{did_you_mean(name, BACKBONES)}"
        )
    kind, architecture = next(
        (kind, architectures[name.removesuffix(suffix)])
        for kind, architectures, suffix in _FAMILIES
        if name.endswith(suffix) and name.removesuffix(suffix) in architectures
    )
    classes = params.pop("classes", 0)
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
    options = {"keep_outputs": context.keep_outputs, "checkpoint": context.checkpoint}
    network = kind(architecture, context.norm, **options, **params)
    network.name = name
    if classes > 0:
        fc = nn.Linear(list(network.out_channels.values())[-1], classes)
        network.classifier = nn.Sequential(OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=fc))
    return network


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


def build_network(config: Config, num_stuff: int, num_thing: int) -> Network:
    """Build the network of a configuration and the classes of a data set, with random weights, in training mode.

    A PanopticNet, a SemanticNet for kind semantic, a WholeNetwork for another `[general] network`. InputError if keys
    of the configuration contradict each other.
    """
    component, keys = config.component("network")
    context = NetworkContext(num_stuff, num_thing, config, norm_factories(config.body)[0])
    seamless = component.built_in and component.name == SEAMLESS
    for head, _ in config.components("head"):
        if not seamless or config.general.kind == "semantic":
            raise InputError(
                f"[{head.section}]: the network {component.name} of kind {config.general.kind} has no pyramid for "
                "further heads"
            )
    if seamless:
        net: Network = component.make(keys, context)
        return net
    where = f"{component.section} ({component.file})"
    with _device_of(component):
        network = instance_of(CustomNetwork, component.build(keys, context), where, "Network")
    if network.kind != config.general.kind:
        raise InputError(
            f"[general] kind = {config.general.kind}: the network {component.name} is of kind {network.kind}"
        )
    _check_declaration(network, keys, where)
    if network.predicts_ids and network.kind != "panoptic":
        raise InputError(f"{where}: predicts_ids is for networks of kind panoptic, not {network.kind}")
    return WholeNetwork(network, component.name)


@register("network", SEAMLESS)
def build_seamless(keys: General, context: NetworkContext) -> Network:
    """Build the network of the sections body, fpn, rpn, roi and sem."""
    config, num_stuff, num_thing = context.config, context.num_stuff, context.num_thing
    if config.general.kind == "semantic":
        return _build_semantic_net(config, num_stuff + num_thing)
    if num_thing < 1:
        raise InputError(f"the data set has {num_thing} thing classes, the network needs at least one")
    body, fpn, kind, width = config.body, config.fpn, config.parts_of_kind, config.fpn.out_channels
    body_norm, head_norm = norm_factories(body)
    backbone = _build_backbone(config, body_norm)
    missing = [name for name in fpn.inputs if name not in backbone.out_channels]
    if missing:
        raise InputError(f"[fpn] inputs: {body.body} has no {missing[0]}, only {', '.join(backbone.out_channels)}")
    channels = [backbone.out_channels[name] for name in fpn.inputs]
    # not stated for a timm network
    if body.out_channels and [body.out_channels[name] for name in fpn.inputs] != channels:
        raise InputError(f"[body] out_channels: {body.body} gives {backbone.out_channels}, not {body.out_channels}")
    strides = [backbone.out_strides[name] for name in fpn.inputs]
    strides += [strides[-1] * 2 ** (i + 1) for i in range(fpn.extra_scales)]
    if tuple(fpn.out_strides) != tuple(strides):
        raise InputError(f"[fpn] out_strides: {body.body} gives {tuple(strides)}, not {tuple(fpn.out_strides)}")
    if strides != sorted(strides):
        raise InputError(f"[fpn] inputs must be in the order of their strides, finest first, got {tuple(strides)}")
    pyramid = FPN(channels, width, fpn.extra_scales, body_norm, fpn.interpolation)
    net = PanopticNet(
        FPNBody(backbone, pyramid, fpn.inputs, config.general.checkpoint_body),
        RPNHead(config.rpn, width, head_norm),
        ROIHead(config.roi, width, num_thing, head_norm, kind.has_masks),
        SemanticHead(config.sem, width, num_stuff + num_thing, body_norm) if kind.has_classes else None,
        None,
        NetworkOptions.of(config, num_stuff),
    )
    if torch.get_default_device().type != "meta":
        initialise(net, body)  # a model that is opened loads all weights
    if not any(config.components("head")):
        return net
    # last: the initial weights of the others do not depend on them, and they have initial weights of their own
    heads = _build_heads(config, HeadContext(width, tuple(strides), num_stuff, num_thing, body_norm, config))
    return PanopticNet(net.body, net.rpn_head, net.roi_head, net.sem_head, heads, net.options)


def build_training_module(config: Config, num_stuff: int, num_thing: int) -> TrainingModule:
    """Build the network of :func:`build_network` with its losses as one module, and with `[general] winograd`."""
    net = build_network(config, num_stuff, num_thing)
    if config.general.winograd:
        use_winograd(net)
    return TrainingModule(net)


def _check_declaration(part: Head | CustomNetwork, keys: object, where: str) -> None:
    """Raise InputError if the key of the weight of a loss is not declared, or the name of an output cannot be one."""
    for name, weight in part.losses.items():
        if not isinstance(loss_weight(keys, weight), (int, float)):
            raise InputError(f"{where}: the weight of {name} is the key {weight}, which it does not declare")
    if problem := next(filter(None, map(name_problem, part.outputs)), None):
        raise InputError(f"{where}: output {problem}")


def _build_heads(config: Config, context: HeadContext) -> nn.ModuleDict:
    """Build the custom heads; InputError if one declares what another one, the network or its own keys do not allow."""
    heads = nn.ModuleDict()
    taken = set(config.parts_of_kind.losses)
    for component, keys in config.components("head"):
        where = f"head {component.name} ({component.file})"
        with _device_of(component):
            head = instance_of(Head, component.build(keys, context), where)
        _check_declaration(head, keys, where)
        outputs = {output for other in heads.values() for output in other.outputs}  # type: ignore[union-attr]
        twice = [name for name in head.losses if name in taken] + [name for name in head.outputs if name in outputs]
        if twice:
            raise InputError(f"{where}: there is another {twice[0]}: rename it")
        taken |= set(head.losses)
        heads[component.name] = head
    return heads


def _build_semantic_net(config: Config, num_classes: int) -> SemanticNet:
    body, sem = config.body, config.sem
    norm, _ = norm_factories(body)
    if body.body_params.get("classes"):
        raise InputError("[body] body_params: a semantic network needs the features of the body: remove classes")
    backbone = _build_backbone(config, norm, keep_outputs=False)
    channels = list(backbone.out_channels.values())[-1]
    head = DeeplabV3(sem, channels, norm)
    cls = nn.Conv2d(sem.out_channels, num_classes, 1)
    options = SemanticOptions(channels_last=config.general.channels_last, semantic_loss=SemanticLoss(config))
    net = SemanticNet(backbone, head, cls, options)
    if torch.get_default_device().type != "meta":
        initialise(net, body)  # a model that is opened loads all weights
    return net


def _build_backbone(config: Config, norm: NormFactory, keep_outputs: bool = True) -> Backbone:
    """Build the backbone of `[body]`, with frozen modules; InputError if body_params or num_frozen do not fit it."""
    body = config.body
    synchronise = body.normalization_mode.startswith("syncbn")
    checkpoint = config.general.checkpoint_body
    context = BodyContext(norm, body.body, body.body_params, checkpoint, keep_outputs, synchronise)
    component, keys = config.component("body")
    try:
        backbone = component.make(keys, context) if component.built_in else _custom_body(config, context)
    except (TypeError, ValueError, IndexError) as error:
        # timm errors do not name the network
        name = f"{body.body}: " if body.body != component.name else ""
        raise InputError(f"[body] body_params: {name}{error}") from error
    assert isinstance(backbone, Backbone)
    if body.num_frozen > 0:
        if body.num_frozen > (count := backbone.num_modules):
            raise InputError(f"[body] num_frozen: {body.body} has {count} modules, not {body.num_frozen}")
        backbone.freeze(body.num_frozen)
    return backbone


def _device_of(component: Component) -> AbstractContextManager[Any]:
    """Return a context to build a component in: code of users may fail on the meta device, where models are opened."""
    return nullcontext() if component.built_in else torch.device("cpu")


def _custom_body(config: Config, context: BodyContext) -> Body:
    """Build the body of a user; InputError if it is none, or its maps are others than it declares."""
    component, keys = config.component("body")
    where = f"{component.section} ({component.file})"
    with torch.device("cpu"):
        backbone = instance_of(Body, component.build(keys, context), where)
    if config.body.body_params:
        raise InputError(f"[body] body_params has no effect on {component.name}: set keys of [{component.section}]")
    if config.general.checkpoint_body:
        raise InputError(f"[general] checkpoint_body: {component.name} does not support it")
    largest = max(64, *backbone.strides.values())
    # images have any size: one side is less than a multiple of the strides, one more
    height, width = 3 * largest - 1, 4 * largest + 1
    errors = named_errors(component.section, component.module, InputError)
    with torch.device("cpu"), errors, torch.no_grad(), torch.random.fork_rng(devices=[]):
        device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
        found = backbone.eval()(torch.zeros(1, 3, height, width, device=device))
        backbone.train()
        if not isinstance(found, dict):
            raise TypeError(f"forward() must return a dict of maps, returned {type(found).__name__}")
        shapes = {name: tuple(found[name].shape[1:]) for name in backbone.strides}
    channels, strides = backbone.out_channels, backbone.strides.items()
    declared = {name: (channels.get(name), -(-height // stride), -(-width // stride)) for name, stride in strides}
    if shapes != declared:
        raise InputError(
            f"{where}: the maps of an image of 3 x {height} x {width} are {shapes}, their channels and strides, "
            f"rounded up, declare {declared}"
        )
    return backbone


def norm_factories(config: BodyKeys) -> tuple[NormFactory, NormFactory]:
    """Return the norm factories of body, FPN and semantic head, and of RPN and ROI head.

    `[body] normalization_mode` is bn, syncbn, gn, off, or two of them joined by `+`, one for each (docs/contract.md,
    section 2).
    """
    kinds: dict[str, NormFactory] = {
        "bn": InPlaceABN,
        "syncbn": InPlaceABNSync,
        "gn": partial(_group_norm, config.gn_groups),
        "off": ActivatedIdentity,
    }
    names = config.normalization_mode.split("+")
    activation, slope = config.activation, config.activation_slope
    made = [partial(kinds[name], activation=activation, activation_param=slope) for name in names]
    return made[0], made[-1]


def _group_norm(groups: int, channels: int, **activation: Any) -> ActivatedGroupNorm:
    if channels % groups:
        raise InputError(f"[body] gn_groups: {channels} channels of a layer do not divide into {groups} equal groups")
    return ActivatedGroupNorm(channels, groups, **activation)


@torch.no_grad()
def initialise(net: Network, config: BodyKeys) -> None:
    """Initialise the convolutions and linear layers of a network in place; norms keep weight 1 and bias 0.

    Hidden layers keep the variance of the signal (He et al. 2015), biases are 0, outputs start small.
    """
    gain_slope = config.activation_slope if config.activation == "leaky_relu" else 0.0
    # small outputs at the start, as usual for Faster R-CNN
    deviations = dict.fromkeys(("rpn_head.conv_obj", "rpn_head.conv_bbx", "roi_head.roi_cls"), 0.01)
    deviations["roi_head.roi_bbx"] = 0.001
    body = set() if net.backbone is None else set(net.backbone.modules())
    backbones = [module for module in net.modules() if isinstance(module, Backbone) and module.initialised]
    initialised = {module for backbone in backbones for module in backbone.pretrained_part.modules()}
    for name, module in net.named_modules():
        if module in initialised or not isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        # in a contiguous tensor: a generator fills a channels-last one in another order
        weight = torch.empty(module.weight.shape, device=module.weight.device)
        if name in deviations:
            nn.init.normal_(weight, std=deviations[name])
        elif name in ("roi_head.roi_msk", "sem_head.conv_sem", "cls"):
            nn.init.xavier_normal_(weight)
        elif module in body:
            nn.init.kaiming_normal_(weight, a=gain_slope, mode="fan_out")
        else:
            nn.init.kaiming_normal_(weight, a=gain_slope)
        module.weight.copy_(weight)
