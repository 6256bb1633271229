"""The network, its criterion and the training module of a configuration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from seamseg.config import KINDS, Config
from seamseg.config.bodies import TIMM
from seamseg.models.backbones import build_backbone
from seamseg.models.backbones.base import Backbone, NormFactory
from seamseg.models.backbones.fpn import FPN, FPNBody
from seamseg.models.backbones.timm_network import TimmBackbone
from seamseg.models.criterion import Criterion, SemanticCriterion, TrainingModule
from seamseg.models.folding import fold_layers
from seamseg.models.heads.deeplab import DeeplabV3
from seamseg.models.heads.points import PointHead
from seamseg.models.heads.roi import DetectionSelector, ROIExtractor, ROIHead
from seamseg.models.heads.roi_targets import ProposalMatcher
from seamseg.models.heads.rpn import AnchorGenerator, AnchorMatcher, ProposalGenerator, RPNHead
from seamseg.models.heads.semantic import SemanticHead
from seamseg.models.panoptic import NetworkOptions, PanopticNet
from seamseg.models.quantised import quantised
from seamseg.models.semantic import SemanticNet, SemanticOptions, SemanticTrainingModule
from seamseg.ops.norm import ActivatedGroupNorm, ActivatedIdentity, InPlaceABN, InPlaceABNSync
from seamseg.utils.errors import InputError


def build_network(config: Config, num_stuff: int, num_thing: int) -> Any:
    """Build the network of a configuration, with random weights, in training mode.

    Parameters
    ----------
    config : of any kind: instance segmentation networks have no semantic head, detection networks no mask branch
        either. With `[general] qat` the network is one of :mod:`seamseg.models.quantised`, without ranges
    num_stuff, num_thing : classes of the data set

    Returns
    -------
    PanopticNet; SemanticNet for kind semantic

    Raises
    ------
    InputError
        if keys of the configuration contradict each other
    """
    if config.general.qat:
        net = quantised(fold_layers(build_network(without_quantisation(config), num_stuff, num_thing)))
        backbone = net.body if config.kind == "semantic" else net.body.backbone
        backbone.freeze(config.body.num_frozen)
        return net
    if config.kind == "semantic":
        return _build_semantic_net(config, num_stuff + num_thing)
    if num_thing < 1:
        raise InputError(f"the data set has {num_thing} thing classes, the network needs at least one")
    body_norm, head_norm = norm_factories(
        config.body.normalization_mode, config.body.activation, config.body.activation_slope, config.body.gn_groups
    )
    rpn, width = config.rpn, config.fpn.out_channels
    net = PanopticNet(
        _build_body(config, body_norm),
        RPNHead(width, len(rpn.anchor_ratios), rpn.hidden_channels, head_norm, stride=rpn.stride),
        _build_roi_head(config, head_norm, num_thing),
        _build_semantic(config, body_norm, num_stuff + num_thing),
        _network_options(config, num_stuff),
    )
    initialise(net, config.body.activation, config.body.activation_slope)
    net.body.backbone.freeze(config.body.num_frozen)
    return net


def without_quantisation(config: Config) -> Config:
    """Return the configuration of the network from which a training with `[general] qat` starts."""
    return replace(config, general=replace(config.general, qat=False))


def build_criterion(config: Config, num_stuff: int) -> Criterion:
    """Build the losses of a configuration; `num_stuff` as for :func:`build_network`."""
    rpn, roi = config.rpn, config.roi
    return Criterion(
        num_stuff=num_stuff,
        anchor_matcher=AnchorMatcher(
            rpn.num_samples, rpn.pos_ratio, rpn.pos_threshold, rpn.neg_threshold, rpn.void_threshold, roi.fixed_samples
        ),
        rpn_sigma=rpn.sigma,
        roi_sigma=roi.sigma,
        bbx_reg_weights=tuple(roi.bbx_reg_weights),
        mask_size=(2 * roi.roi_size[0], 2 * roi.roi_size[1]) if _has_masks(config) else None,
        void_is_background=_has_masks(config) and roi.void_is_background,
        semantic=_semantic_criterion(config) if config.kind == "panoptic" else None,
        crop_aware=frozenset(name for name in ("rpn", "roi") if getattr(config, name).bbx_loss == "cabb"),
    )


def build_training_module(config: Config, num_stuff: int, num_thing: int) -> Any:
    """Build network and losses as one module, whose `net` is that of :func:`build_network`.

    Returns
    -------
    TrainingModule; SemanticTrainingModule for kind semantic
    """
    if config.kind == "semantic":
        return SemanticTrainingModule(build_network(config, num_stuff, num_thing), _semantic_criterion(config))
    return TrainingModule(build_network(config, num_stuff, num_thing), build_criterion(config, num_stuff))


def _semantic_criterion(config: Config) -> SemanticCriterion:
    sem = config.sem
    return SemanticCriterion(sem.ohem, sem.loss_power if sem.loss == "loss_max_pooling" else None)


def _network_options(config: Config, num_stuff: int) -> NetworkOptions:
    rpn, roi = config.rpn, config.roi
    strides = config.fpn.out_strides[rpn.fpn_min_level : rpn.fpn_min_level + rpn.fpn_levels]
    return NetworkOptions(
        num_stuff=num_stuff,
        anchors=AnchorGenerator([s * rpn.stride for s in strides], rpn.anchor_scale, rpn.anchor_ratios),
        rpn_levels=(rpn.fpn_min_level, rpn.fpn_levels),
        proposals=ProposalGenerator(
            rpn.nms_threshold,
            rpn.num_pre_nms_train,
            rpn.num_post_nms_train,
            rpn.num_pre_nms_val,
            rpn.num_post_nms_val,
            rpn.min_size,
        ),
        matcher=ProposalMatcher(
            roi.num_samples,
            roi.pos_ratio,
            roi.pos_threshold,
            roi.neg_threshold_hi,
            roi.neg_threshold_lo,
            roi.void_threshold,
            roi.sample_empty_images,
            fixed=roi.fixed_samples,
        ),
        rois=ROIExtractor(
            (roi.roi_size[0], roi.roi_size[1]),
            roi.fpn_min_level,
            roi.fpn_levels,
            roi.fpn_canonical_scale,
            roi.fpn_canonical_level,
        ),
        selector=DetectionSelector(roi.nms_threshold, roi.score_threshold, roi.max_predictions),
        bbx_reg_weights=tuple(roi.bbx_reg_weights),
        channels_last=config.general.channels_last,
        crowd_boxes=config.kind == "detection",
    )


def _build_body(config: Config, norm: NormFactory) -> FPNBody:
    body, fpn, checkpoint = config.body, config.fpn, config.general.checkpoint_body
    backbone = build_configured_backbone(config, norm)
    missing = [name for name in fpn.inputs if name not in backbone.out_channels]
    if missing:
        raise InputError(f"[fpn] inputs: {body.body} has no {missing[0]}, only {', '.join(backbone.out_channels)}")
    channels = [backbone.out_channels[name] for name in fpn.inputs]
    # those of a network of timm need not be stated
    if body.out_channels and [body.out_channels[name] for name in fpn.inputs] != channels:
        raise InputError(f"[body] out_channels: {body.body} gives {backbone.out_channels}, not {body.out_channels}")
    strides = [backbone.out_strides[name] for name in fpn.inputs]
    strides += [strides[-1] * 2 ** (i + 1) for i in range(fpn.extra_scales)]
    if tuple(fpn.out_strides) != tuple(strides):
        raise InputError(f"[fpn] out_strides: {body.body} gives {tuple(strides)}, not {tuple(fpn.out_strides)}")
    if any(fine > coarse for fine, coarse in itertools.pairwise(strides)):
        raise InputError(f"[fpn] inputs must be in the order of their strides, finest first, got {tuple(strides)}")
    pyramid = FPN(channels, fpn.out_channels, fpn.extra_scales, norm, fpn.interpolation)
    return FPNBody(backbone, pyramid, fpn.inputs, checkpoint)


def _build_semantic_net(config: Config, num_classes: int) -> SemanticNet:
    body, sem, activation = config.body, config.sem, config.body.activation
    norm, _ = norm_factories(body.normalization_mode, activation, body.activation_slope, body.gn_groups)
    if body.body_params.get("classes"):
        raise InputError("[body] body_params: a semantic network needs the features of the body: remove classes")
    backbone = build_configured_backbone(config, norm, keep_outputs=False)
    channels = list(backbone.out_channels.values())[-1]
    window = (sem.pooling_size[0], sem.pooling_size[1])
    head = DeeplabV3(channels, sem.out_channels, norm, sem.hidden_channels, sem.dilations, window)
    cls = nn.Conv2d(sem.out_channels, num_classes, 1)
    net = SemanticNet(backbone, head, cls, SemanticOptions(channels_last=config.general.channels_last))
    initialise(net, activation, body.activation_slope)
    backbone.freeze(body.num_frozen)
    return net


def build_configured_backbone(config: Config, norm: NormFactory, keep_outputs: bool = True) -> Backbone:
    """Build the backbone of `[body]`, with `norm` as its norm layers; `keep_outputs` as of :class:`Backbone`.

    Raises
    ------
    InputError
        if body_params or num_frozen do not fit it
    """
    body = config.body
    for name in ("checkpoint", "keep_outputs"):
        if name in body.body_params:
            raise InputError(f"[body] body_params: {name} is no argument of the configuration")
    try:
        backbone = _make_backbone(config, norm, keep_outputs)
    except (TypeError, ValueError) as error:
        # errors of timm do not name the network
        name = f"{body.body}: " if body.body.startswith(TIMM) else ""
        raise InputError(f"[body] body_params: {name}{error}") from error
    if body.num_frozen > backbone.num_modules:
        raise InputError(f"[body] num_frozen: {body.body} has {backbone.num_modules} modules, not {body.num_frozen}")
    return backbone


def _make_backbone(config: Config, norm: NormFactory, keep_outputs: bool) -> Backbone:
    body, checkpoint = config.body, config.general.checkpoint_body
    if body.body.startswith(TIMM):
        synchronise = body.normalization_mode.startswith("syncbn")
        name = body.body.removeprefix(TIMM)
        return TimmBackbone(name, body.body_params, body.drop_path, keep_outputs, checkpoint, synchronise)
    if body.drop_path > 0:
        raise InputError(f"[body] drop_path: {body.body} has none, only networks of timm have")
    return build_backbone(body.body, norm, keep_outputs=keep_outputs, checkpoint=checkpoint, **body.body_params)


def _build_semantic(config: Config, norm: NormFactory, num_classes: int) -> SemanticHead | None:
    if config.kind != "panoptic":
        return None
    sem = config.sem
    return SemanticHead(
        config.fpn.out_channels,
        num_classes,
        norm,
        sem.fpn_min_level,
        sem.fpn_levels,
        sem.hidden_channels,
        (sem.pooling_size[0], sem.pooling_size[1]),
    )


def _build_roi_head(config: Config, norm: NormFactory, num_thing: int) -> ROIHead:
    roi, width = config.roi, config.fpn.out_channels
    head = ROIHead(
        width,
        num_thing,
        norm,
        (roi.roi_size[0], roi.roi_size[1]),
        roi.fc_channels,
        roi.conv_channels,
        _has_masks(config),
        roi.box_convs,
    )
    if head.with_masks and roi.mask_points:
        head.roi_pts = PointHead(width, roi.conv_channels, num_thing, roi.mask_points, roi.mask_subdivisions)
    return head


def _has_masks(config: Config) -> bool:
    return KINDS[config.kind].has_masks


def norm_factories(mode: str, activation: str, slope: float, gn_groups: int) -> tuple[NormFactory, NormFactory]:
    """Return the norm factories of body, FPN and semantic head, and of RPN and ROI head.

    Parameters
    ----------
    mode : bn, syncbn, gn, off, or two of them joined by `+`, one for each (docs/contract.md, section 2)
    activation, slope : of the layers
    gn_groups : groups of group norm

    Returns
    -------
    body_norm, head_norm : `norm(channels)` or `norm(channels, activation="identity")`

    Raises
    ------
    InputError
        if the mode is unknown; from the factory of group norm, if the groups do not divide the channels
    """
    kinds: dict[str, NormFactory] = {
        "bn": InPlaceABN,
        "syncbn": InPlaceABNSync,
        "gn": partial(_group_norm, gn_groups),
        "off": ActivatedIdentity,
    }
    names = mode.split("+")
    if len(names) > 2 or any(name not in kinds for name in names):
        raise InputError(
            f"[body] normalization_mode: unknown mode {mode!r}, give one of {', '.join(kinds)}, or two joined by +"
        )
    made = [partial(kinds[name], activation=activation, activation_param=slope) for name in names]
    return made[0], made[-1]


def _group_norm(groups: int, channels: int, **activation: Any) -> ActivatedGroupNorm:
    if channels % groups:
        raise InputError(f"[body] gn_groups: {channels} channels of a layer do not divide into {groups} equal groups")
    return ActivatedGroupNorm(channels, groups, **activation)


_OUTPUT_STD = {
    "rpn_head.conv_obj": 0.01,
    "rpn_head.conv_bbx": 0.01,
    "roi_head.roi_cls": 0.01,
    "roi_head.roi_bbx": 0.001,
    "roi_head.roi_pts.output": 0.001,
}
"""Standard deviation of the weights of output layers; small outputs at the start, as usual for Faster R-CNN."""


@torch.no_grad()
def initialise(net: nn.Module, activation: str, slope: float) -> None:
    """Initialise the convolutions and linear layers of a network; norms keep weight 1 and bias 0.

    Hidden layers keep the variance of the signal (He et al. 2015); biases are 0; outputs start small.

    Parameters
    ----------
    net : changed in place
    activation, slope : of the layers, which decide the gain
    """
    gain_slope = slope if activation == "leaky_relu" else 0.0
    outputs = {"roi_head.roi_msk", "sem_head.conv_sem", "cls", *_OUTPUT_STD}
    body = "body.backbone." if isinstance(net, PanopticNet) else "body."
    # networks of timm have their own initial weights
    initialised = tuple(f"{name}.model." for name, module in net.named_modules() if isinstance(module, TimmBackbone))
    for name, module in net.named_modules():
        if name.startswith(initialised) or not isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        # in a contiguous tensor: a generator fills a channels-last one in another order
        weight = torch.empty(module.weight.shape, device=module.weight.device)
        if name in _OUTPUT_STD:
            nn.init.normal_(weight, std=_OUTPUT_STD[name])
        elif name in outputs:
            nn.init.xavier_normal_(weight)
        elif name.startswith(body):
            nn.init.kaiming_normal_(weight, a=gain_slope, mode="fan_out")
        else:
            nn.init.kaiming_normal_(weight, a=gain_slope)
        module.weight.copy_(weight)
