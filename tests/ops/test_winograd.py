"""Winograd convolutions against direct ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops import winograd
from seamseg.ops.fused import FusedConv2d
from seamseg.ops.winograd import WinogradConv2d, is_suitable


@pytest.mark.parametrize("dilation", [1, 2, 5, 9])
@pytest.mark.parametrize("size", [(1, 1), (4, 9), (17, 12), (8, 16)])
@pytest.mark.parametrize("chunk", [1, 1 << 23])
def test_equals_the_direct_sum(dilation, size, chunk, monkeypatch):
    monkeypatch.setattr(winograd, "_CHUNK", chunk)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 66, 3, padding=dilation, dilation=dilation)
    layer = WinogradConv2d(FusedConv2d(conv.weight, conv.bias, conv, "leaky_relu", 0.01))
    x, residual = torch.randn(2, 64, *size), torch.randn(2, 66, *size)
    with torch.inference_mode():
        exact = functional.conv2d(
            x.double(), conv.weight.double(), conv.bias.double(), padding=dilation, dilation=dilation
        )
        for added in (None, residual):
            expected = functional.leaky_relu(exact if added is None else exact + added.double(), 0.01).float()
            for given in (x, x.contiguous(memory_format=torch.channels_last)):
                y = layer(given, added)
                assert_close(y, expected, rtol=0, atol=1e-4)
                assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(64, 64, 1),
        nn.Conv2d(64, 64, 3, padding=1, stride=2),
        nn.Conv2d(64, 64, 3, padding=2),
        nn.Conv2d(64, 64, 3, padding=1, groups=4),
        nn.Conv2d(3, 64, 3, padding=1),
    ],
)
def test_unsuitable(conv):
    fused = FusedConv2d(conv.weight, conv.bias, conv)
    assert not is_suitable(fused)
    assert not is_suitable(conv)
    with pytest.raises(ValueError, match="needs a 3x3 convolution of stride 1"):
        WinogradConv2d(fused)
