"""The kinds of networks with their modules and losses, and the backbones with channels and strides of their stages.

docs/design/structure.md lists what a new kind needs besides an entry here. The numbers of
:mod:`seamseg.models.backbones`, without torch, are the defaults of `[body] out_channels`, `[body] out_strides` and
`[fpn] inputs`. Only the backbone itself knows the channels of one that is not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seamseg.config import components
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    `task` is what it does, as the Hugging Face Hub names it, `main_score` the key of its score in the JSON of an
    evaluation. Each of its `modules` has its own state dict in a snapshot. Its `losses` have the order of `[optimizer]
    loss_weights`. The keys in `ignored`, `section.key` or a whole `section`, have no effect.
    """

    task: str
    main_score: str
    modules: tuple[str, ...]
    losses: tuple[str, ...]
    ignored: frozenset[str]
    has_masks: bool = False
    """Whether detections have masks."""
    has_classes: bool = False
    """Whether pixels have classes."""

    def uses(self, section: str, key: str) -> bool:
        """Whether a key of the configuration has an effect."""
        return self.ignored.isdisjoint((section, f"{section}.{key}"))


_DETECTION = ("obj_loss", "bbx_loss", "roi_cls_loss", "roi_bbx_loss")

# the original accepts and ignores it, too
_ALWAYS = frozenset({"body.out_strides"})
_FUSION = frozenset(f"general.{key}" for key in ("overlap_threshold", "min_stuff_area", "eval_mode", "eval_coco"))
_MASKS = frozenset(f"roi.{key}" for key in ("void_is_background", "mask_positives_only"))
_PYRAMID = frozenset({"fpn", "rpn", "roi", "body.out_channels", "sem.fpn_min_level", "sem.fpn_levels"})

KINDS = {
    "panoptic": Kind(
        "panoptic-segmentation",
        "PQ",
        ("body", "rpn_head", "roi_head", "sem_head"),
        (*_DETECTION, "roi_msk_loss", "sem_loss"),
        _ALWAYS | {"sem.out_channels", "sem.dilations"},
        has_masks=True,
        has_classes=True,
    ),
    "instance_seg": Kind(
        "instance-segmentation",
        "mask.AP",
        ("body", "rpn_head", "roi_head"),
        (*_DETECTION, "roi_msk_loss"),
        _ALWAYS | _FUSION | {"sem"},
        has_masks=True,
    ),
    "detection": Kind(
        "object-detection",
        "box.AP",
        ("body", "rpn_head", "roi_head"),
        _DETECTION,
        _ALWAYS | _FUSION | _MASKS | {"sem"},
    ),
    "semantic": Kind(
        "semantic-segmentation",
        "mIoU",
        ("body", "head", "cls"),
        ("sem_loss",),
        _ALWAYS | _FUSION | _PYRAMID | {"general.score_threshold"},
        has_classes=True,
    ),
}
"""The kinds by the name in `[general] kind`; the first is the default."""

PANOPTIC = "panoptic"

SEAMLESS = "seamless"
"""The network that the sections body, fpn, rpn, roi and sem describe."""

WHOLE = "network"
"""The only module of other networks."""

_OF_SEAMLESS = frozenset(
    {"fpn", "rpn", "roi", "sem", "optimizer.loss_weights", "optimizer.layer_decay"}
    # [body] also chooses its norms
    | {f"body.{key}" for key in ("body", "weights", "body_params", "num_frozen", "bn_frozen", "out_channels")}
    | {f"general.{key}" for key in ("channels_last", "compile", "checkpoint_body")}
)


def kind_of_network(kind: str, network: str) -> Kind:
    """Return a kind with the modules, losses and ignored keys of the network of `[general] network`."""
    if network == SEAMLESS:
        return KINDS[kind]
    return replace(KINDS[kind], modules=(WHOLE,), losses=(), ignored=KINDS[kind].ignored | _OF_SEAMLESS)


_FIVE = ("mod1", "mod2", "mod3", "mod4", "mod5")

TIMM = "timm:"
"""Prefix of timm networks in `[body] body`."""


@dataclass(frozen=True)
class BodyLayout:
    """Channels, if known here, and stride of the output of each stage, and the default inputs of the pyramid.

    Without dilation, the inputs have strides 4, 8, 16 and 32.
    """

    out_channels: Mapping[str, int]
    out_strides: Mapping[str, int]
    inputs: tuple[str, ...]


_PLAIN = dict(zip(_FIVE, (4, 4, 8, 16, 32)))
_BASIC = BodyLayout(dict(zip(_FIVE, (64, 64, 128, 256, 512))), _PLAIN, _FIVE[1:])
_BOTTLENECK = BodyLayout(dict(zip(_FIVE, (64, 256, 512, 1024, 2048))), _PLAIN, _FIVE[1:])
_RESNEXT = BodyLayout(
    {**_BOTTLENECK.out_channels, "bn_out": 2048}, {**_PLAIN, "bn_out": 32}, ("mod2", "mod3", "mod4", "bn_out")
)
_EIGHT = (*_FIVE, "mod6", "mod7", "bn_out")
_WIDER_RESNET = BodyLayout(
    dict(zip(_EIGHT, (64, 128, 256, 512, 1024, 2048, 4096, 4096))),
    dict(zip(_EIGHT, (1, 2, 4, 8, 16, 32, 32, 32))),
    ("mod3", "mod4", "mod5", "bn_out"),
)


_NINE = ("mod1", "mod2", "tra2", "mod3", "tra3", "mod4", "tra4", "mod5", "bn_out")
_DENSENETS = {
    "densenet121": (64, 256, 128, 512, 256, 1024, 512, 1024, 1024),
    "densenet169": (64, 256, 128, 512, 256, 1280, 640, 1664, 1664),
    "densenet201": (64, 256, 128, 512, 256, 1792, 896, 1920, 1920),
    "densenet264": (64, 256, 128, 512, 256, 2304, 1152, 2688, 2688),
}
_OF_DENSENET = dict(zip(_NINE, (4, 4, 8, 8, 16, 16, 32, 32, 32)))

BODIES: dict[str, BodyLayout] = {
    **dict.fromkeys(("resnet18", "resnet34"), _BASIC),
    **dict.fromkeys(("resnet50", "resnet101", "resnet152"), _BOTTLENECK),
    **dict.fromkeys(("resnext50", "resnext101", "resnext152"), _RESNEXT),
    **{f"wider_resnet{depth}{form}": _WIDER_RESNET for form in ("", "_a2") for depth in (16, 20, 38)},
    **{name: BodyLayout(dict(zip(_NINE, c)), _OF_DENSENET, _RESNEXT.inputs) for name, c in _DENSENETS.items()},
}
"""The backbones by name."""


def layout_of(body: str, params: Mapping[str, Any] | None = None) -> BodyLayout | None:
    """Return the stages of `[body] body`; None for an unknown name, InputError for a body of a user without strides.

    Of its `body_params`, `dilation` decides the strides, and `width` the channels of a ResNet; values that are refused
    later are ignored here.
    """
    params = params or {}
    layout, dilation, width = BODIES.get(body), params.get("dilation", 1), params.get("width")
    if layout is None:
        if not components.is_registered("body", body):
            return None
        component = components.find("body", body)
        strides = getattr(component.make, "strides", None)
        if not strides or not isinstance(strides, Mapping):
            raise InputError(f"body {component.name} ({component.file}): declare the strides of its maps, by name")
        return BodyLayout({}, dict(strides), tuple(strides))
    if body.startswith("wider_resnet"):
        if not (body.endswith("_a2") and is_dilated_a2(dilation)):
            return layout
        return replace(layout, out_strides={name: min(stride, 8) for name, stride in layout.out_strides.items()})
    if body.startswith("resnet") and type(width) is int and width > 0:
        layout = replace(layout, out_channels={n: c * width // 64 for n, c in layout.out_channels.items()})
    stages = list(dilation) if isinstance(dilation, Sequence) else [dilation] * 4
    if len(stages) != 4:
        return layout
    # as in the original a list for the blocks of a stage keeps the size, too, even one that begins with 1
    kept = [stage != 1 for stage in stages]
    # the pooling before mod2 belongs to mod1; only ResNet omits it
    kept[0] = kept[0] and body.startswith("resnet")
    strides = {}
    for name, stride in layout.out_strides.items():
        stages_before = 4 if name == "bn_out" else max(int(name[3:]), 2) - 1
        # a transition belongs to the next stage
        stages_before += 1 if name.startswith("tra") else 0
        strides[name] = stride >> sum(kept[:stages_before])
    return replace(layout, out_strides=strides)


def is_dilated_a2(dilation: object) -> bool:
    """Return whether this is the dilation of a WiderResNet of form A2 with an output of stride 8."""
    return dilation is True or (isinstance(dilation, Sequence) and tuple(dilation) == (1, 2, 4, 4))
