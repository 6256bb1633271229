"""The backbones that `[body] body` can name, with the channels and strides of their stages.

The numbers are those of :mod:`seamseg.models.backbones`, here without torch. They are the defaults of `[body]
out_channels`, `[body] out_strides` and `[fpn] inputs`. The channels of a network of timm are known to timm only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_FIVE = ("mod1", "mod2", "mod3", "mod4", "mod5")

TIMM = "timm:"
"""What the names of networks of timm begin with in `[body] body`."""


@dataclass(frozen=True)
class BodyLayout:
    """The stages of a backbone without dilation.

    Attributes
    ----------
    out_channels, out_strides : of the output of each stage, by name; no channels if they are not known here
    inputs : stages of strides 4, 8, 16 and 32 that are inputs of the pyramid by default
    """

    out_channels: Mapping[str, int]
    out_strides: Mapping[str, int]
    inputs: tuple[str, ...]

    def texts(self) -> dict[tuple[str, str], str]:
        """Return the values of the keys of which these are the defaults, by (section, key)."""
        return {
            ("body", "out_channels"): json.dumps(self.out_channels),
            ("body", "out_strides"): json.dumps(self.out_strides),
            ("fpn", "inputs"): json.dumps(list(self.inputs)),
        }


def _resnet(*channels: int) -> BodyLayout:
    return BodyLayout(dict(zip(_FIVE, channels)), dict(zip(_FIVE, (4, 4, 8, 16, 32))), _FIVE[1:])


def _resnext() -> BodyLayout:
    names = (*_FIVE, "bn_out")
    channels = (64, 256, 512, 1024, 2048, 2048)
    return BodyLayout(dict(zip(names, channels)), dict(zip(names, (4, 4, 8, 16, 32, 32))), (*_FIVE[1:4], "bn_out"))


def _wider_resnet() -> BodyLayout:
    names = (*_FIVE, "mod6", "mod7", "bn_out")
    channels, strides = (64, 128, 256, 512, 1024, 2048, 4096, 4096), (1, 2, 4, 8, 16, 32, 32, 32)
    return BodyLayout(dict(zip(names, channels)), dict(zip(names, strides)), ("mod3", "mod4", "mod5", "bn_out"))


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
    **dict.fromkeys(("resnet18", "resnet34"), _resnet(64, 64, 128, 256, 512)),
    **dict.fromkeys(("resnet50", "resnet101", "resnet152"), _resnet(64, 256, 512, 1024, 2048)),
    **dict.fromkeys(("resnext50", "resnext101", "resnext152"), _resnext()),
    **{f"wider_resnet{depth}{form}": _wider_resnet() for form in ("", "_a2") for depth in (16, 20, 38)},
    "densenet121": _densenet(6, 12, 24, 16),
    "densenet169": _densenet(6, 12, 32, 32),
    "densenet201": _densenet(6, 12, 48, 32),
    "densenet264": _densenet(6, 12, 64, 48),
}
"""The backbones by name."""


_TIMM_LAYOUT = BodyLayout({}, dict(zip(_FIVE[1:], (4, 8, 16, 32))), _FIVE[1:])


def layout_of(body: str) -> BodyLayout | None:
    """Return the stages of a backbone by its name in `[body] body`; None for an unknown name."""
    return _TIMM_LAYOUT if body.startswith(TIMM) else BODIES.get(body)
