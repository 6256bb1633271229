"""Residual blocks, ResNet and the feature pyramid: shapes, strides, options, and the memory trick of the sum."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from seamseg.models.backbones.base import FPN
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.ops.norm import ABN, ActivatedIdentity, InPlaceABN


@pytest.mark.parametrize("channels", [(4, 4), (2, 2, 8)])
@pytest.mark.parametrize("stride", [1, 2])
def test_block_is_activation_of_the_sum(channels, stride):
    torch.manual_seed(0)
    block = ResidualBlock(4, channels, ABN, stride=stride)
    x = torch.randn(2, 4, 9, 9)
    shortcut = block.proj_bn(block.proj_conv(x)) if block.has_projection else x
    wanted = nn.functional.leaky_relu(block.convs(x) + shortcut, 0.01)
    assert_close(block(x), wanted)
    assert block.has_projection == (stride != 1 or channels[-1] != 4)


@pytest.mark.parametrize("norm", [InPlaceABN, ABN, ActivatedIdentity])
def test_block_gives_the_same_with_and_without_gradients(norm):
    torch.manual_seed(0)
    block = ResidualBlock(4, (4, 4), norm).eval()
    x = torch.randn(2, 4, 9, 9)
    kept = x.clone()
    with torch.no_grad():
        without = block(x)
    assert torch.equal(x, kept), "the input is not written over"
    assert_close(without, block(x))


class _Convolutions(TorchDispatchMode):
    """Records kernel size, stride and input channels of each convolution, of backward passes too."""

    def __init__(self):
        super().__init__()
        self.calls = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        position = {"aten::convolution": 0, "aten::convolution_backward": 1}.get(func._schema.name)
        if position is not None:
            x, weight = args[position : position + 2]
            self.calls.add((func._schema.name, weight.shape[-1], max(args[position + 3]), x.shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", [InPlaceABN, ABN])
def test_narrow_projections_are_subsampled_first(norm):
    """oneDNN writes past its workspace for 1x1 convolutions with a stride and fewer than 16 channels (issue 6035)."""
    block = ResidualBlock(8, (16, 16), norm, stride=2).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 8, 11).to(memory_format=torch.channels_last).requires_grad_()
    with _Convolutions() as convolutions:
        block(x).sum().backward()
    pointwise = {call for call in convolutions.calls if call[1] == 1}
    assert pointwise == {("aten::convolution", 1, 1, 8), ("aten::convolution_backward", 1, 1, 8)}
    projection = block.double().proj_conv
    assert_close(projection(x.double()), nn.functional.conv2d(x.double(), projection.weight, stride=2))


# The feature pyramid against its definition


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
