"""The backbones that `[body] body` can name, with the channels and strides of their stages.

The numbers of :mod:`seamseg.models.backbones`, without torch, are the defaults of `[body]
out_channels`, `[body] out_strides` and `[fpn] inputs`. Only the backbone itself knows the channels of one that is not
listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seamseg.config import components
from seamseg.utils.errors import InputError

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


def _densenet(*layers: int) -> BodyLayout:
    channels, strides, width, stride = {"mod1": 64}, {"mod1": 4}, 64, 4
    for i, count in enumerate(layers, start=2):
        if i > 2:
            width, stride = width // 2, 2 * stride
            channels[f"tra{i - 1}"], strides[f"tra{i - 1}"] = width, stride
        width += 32 * count
        channels[f"mod{i}"], strides[f"mod{i}"] = width, stride
    channels["bn_out"], strides["bn_out"] = width, stride
    return BodyLayout(channels, strides, ("mod2", "mod3", "mod4", "bn_out"))


BODIES: dict[str, BodyLayout] = {
    **dict.fromkeys(("resnet18", "resnet34"), _BASIC),
    **dict.fromkeys(("resnet50", "resnet101", "resnet152"), _BOTTLENECK),
    **dict.fromkeys(("resnext50", "resnext101", "resnext152"), _RESNEXT),
    **{f"wider_resnet{depth}{form}": _WIDER_RESNET for form in ("", "_a2") for depth in (16, 20, 38)},
    "densenet121": _densenet(6, 12, 24, 16),
    "densenet169": _densenet(6, 12, 32, 32),
    "densenet201": _densenet(6, 12, 48, 32),
    "densenet264": _densenet(6, 12, 64, 48),
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
    kept = [keeps_size(stage) for stage in stages]
    # the pooling before mod2 belongs to mod1; only ResNet omits it
    kept[0] = kept[0] and body.startswith("resnet")
    strides = {name: stride >> sum(kept[: _stage(name) - 1]) for name, stride in layout.out_strides.items()}
    return replace(layout, out_strides=strides)


def keeps_size(dilation: object) -> bool:
    """Return whether a stage has the size of its input: unless its dilation is the number 1.

    As in the original it also does if the dilation is a list for its blocks, even one that begins with 1.
    """
    return dilation != 1


def is_dilated_a2(dilation: object) -> bool:
    """Return whether this is the dilation of a WiderResNet of form A2 with an output of stride 8."""
    return dilation is True or (isinstance(dilation, Sequence) and tuple(dilation) == (1, 2, 4, 4))


def _stage(name: str) -> int:
    """Return the number of the stage that decides the stride of an output; 2 for `mod1`."""
    if name == "bn_out":
        return 5
    # a transition precedes the next module
    return max(int(name[3:]), 2) + name.startswith("tra")
