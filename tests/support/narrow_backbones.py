"""Backbones of each family with few channels and blocks."""

from contextlib import ExitStack
from unittest import mock

from seamseg.config.kinds import BODIES
from seamseg.models.backbones import preactivation
from seamseg.models.backbones.preactivation import DENSENETS, RESNEXTS, ResNeXtArchitecture
from seamseg.models.backbones.resnet import RESNETS, Architecture
from seamseg.models.build import build_backbone
from seamseg.ops.norm import InPlaceABN

NARROW = ("resnet50", "resnext50", "wider_resnet16", "wider_resnet16_a2", "densenet121")
"""The networks that are narrow within :func:`narrow_networks`, one a family."""


class _NarrowResNet(Architecture):
    def channels(self, module):
        return (2 * module, 2 * module, 4 * module)


def narrow_networks():
    stack = ExitStack()
    stack.enter_context(mock.patch.dict(RESNETS, resnet50=_NarrowResNet((1, 2, 1, 1), bottleneck=True)))
    stack.enter_context(
        mock.patch.dict(RESNEXTS, resnext50=ResNeXtArchitecture((1, 2, 1, 1), groups=2, channels=(4, 4, 6)))
    )
    stack.enter_context(mock.patch.dict(DENSENETS, densenet121=(2, 2, 1, 1)))
    stack.enter_context(mock.patch.object(preactivation, "_WIDER_CHANNELS", _WIDER_CHANNELS))
    return stack


_WIDER_CHANNELS = ((6, 6), (8, 8), (10, 10), (10, 12), (6, 12, 24), (12, 12, 24))


def build_narrow(name, norm, **options):
    with narrow_networks():
        return build_backbone(name, norm, **options)


def narrow_body(name):
    """Values of `--set` that make a network of :data:`NARROW` the body, within :func:`narrow_networks`."""
    backbone = build_backbone(name, InPlaceABN)
    inputs = list(BODIES[name].inputs)
    return (
        f"body.body={name}",
        "body.gn_groups=2",
        f"body.out_channels={backbone.out_channels}",
        f"body.out_strides={backbone.out_strides}",
        f"fpn.inputs={inputs}",
    )
