"""The feature pyramid against its definition."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from seamseg.models.backbones.fpn import FPN, FPNBody
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import ABN, InPlaceABN


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_levels_are_the_top_down_sum(interpolation):
    torch.manual_seed(0)
    fpn = FPN([4, 6, 8], 5, 2, ABN, interpolation).eval()
    maps = [torch.randn(2, 4, 13, 18), torch.randn(2, 6, 7, 9), torch.randn(2, 8, 4, 5)]
    corners = {} if interpolation == "nearest" else {"align_corners": False}
    top = fpn.lateral[2](maps[2])
    middle = fpn.lateral[1](maps[1]) + functional.interpolate(top, size=(7, 9), mode=interpolation, **corners)
    bottom = fpn.lateral[0](maps[0]) + functional.interpolate(middle, size=(13, 18), mode=interpolation, **corners)
    first = fpn.extra[0](maps[2])
    wanted = [fpn.output[0](bottom), fpn.output[1](middle), fpn.output[2](top), first, fpn.extra[1](first)]
    for found, level in zip(fpn(maps), wanted, strict=True):
        assert_close(found, level)


def test_body_takes_the_maps_it_is_told_to():
    backbone = ResNet(RESNETS["resnet18"], InPlaceABN)
    body = FPNBody(backbone, FPN([128, 512], 8, 0, InPlaceABN), ["mod3", "mod5"]).eval()
    with torch.no_grad():
        levels = body(torch.randn(1, 3, 64, 96))
    assert [tuple(x.shape) for x in levels] == [(1, 8, 8, 12), (1, 8, 2, 3)]
