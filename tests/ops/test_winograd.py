"""Winograd convolutions against direct ones, and their kernels against plain torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops import fused
from seamseg.ops.fused import FusedConv2d, WinogradConv2d, use_winograd, winograd_input, winograd_output


def layer_and_exact(x, residual, dilation=1, outputs=80, activation="leaky_relu"):
    torch.manual_seed(0)
    conv = nn.Conv2d(x.shape[1], outputs, 3, padding=dilation, dilation=dilation)
    layer = FusedConv2d(conv.weight, conv.bias, conv, activation, 0.1)
    use_winograd(layer)
    assert type(layer) is WinogradConv2d
    exact = functional.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=dilation, dilation=dilation)
    exact = exact if residual is None else exact + residual.double()
    return layer, getattr(functional, activation)(exact, 0.1).float()


@pytest.mark.parametrize("chunk", [1, 1 << 23])
@pytest.mark.parametrize(
    ("dilation", "size", "activation"),
    [(1, (1, 1), "elu"), (1, (17, 12), "leaky_relu"), (2, (8, 15), "relu"), (5, (4, 9), "leaky_relu")],
)
def test_equals_the_direct_sum(dilation, size, activation, chunk, monkeypatch):
    monkeypatch.setattr(fused, "_CHUNK", chunk)
    monkeypatch.setattr(fused, "_saves_time", lambda *_: True)
    x, residual = torch.randn(2, 64, *size), torch.randn(2, 80, *size)
    for added in (None, residual):
        layer, exact = layer_and_exact(x, added, dilation, activation=activation)
        monkeypatch.setattr(FusedConv2d, "forward", None)  # the direct sum would fail
        with torch.inference_mode():
            for given in (x, x.contiguous(memory_format=torch.channels_last)):
                y = layer(given, added)
                assert_close(y, exact, rtol=0, atol=2e-5)
                assert y.is_contiguous(memory_format=torch.channels_last)


def test_the_direct_sum_where_tiles_are_few_or_mostly_padding():
    for side, dilation, wanted in ((20, 1, False), (80, 1, True), (80, 2, True), (83, 16, False), (84, 16, True)):
        x = torch.randn(1, 64, side, side)
        layer, exact = layer_and_exact(x, None, dilation)
        with torch.inference_mode():
            assert_close(layer(x), exact, rtol=0, atol=2e-5)
            assert (36 in layer._packed) == wanted
            assert_close(layer.double()(x.double()).float(), exact, rtol=0, atol=1e-5)
            assert not layer._packed
        assert_close(layer.float()(x), exact, rtol=0, atol=2e-5)
        assert not layer._packed, "with gradients the direct sum"


def test_wrong_arguments():
    for x in (torch.zeros(1, 4, 4, 8), torch.zeros(1, 4, 4, 16).double(), torch.zeros(1, 16, 4, 4).permute(0, 2, 3, 1)):
        with pytest.raises(RuntimeError, match="C a multiple of 16"):
            winograd_input(x, 1, 0, 1)
    with pytest.raises(RuntimeError, match="expected 36 contiguous products"):
        winograd_output([torch.zeros(1, 16)] * 35, torch.zeros(16), None, 1.0, torch.zeros(1, 4, 4, 16), 1, 0, 1)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(64, 64, 1),
        nn.Conv2d(64, 64, 3, padding=1, stride=2),
        nn.Conv2d(64, 64, 3, padding=2),
        nn.Conv2d(64, 64, 3),
        nn.Conv2d(64, 64, 3, padding=(1, 2), dilation=(1, 2)),
        nn.Conv2d(64, 64, 3, padding=(2, 1), dilation=(2, 1)),
        nn.Conv2d(64, 64, 3, padding=1, groups=4),
        nn.Conv2d(64, 72, 3, padding=1),
        nn.Conv2d(16, 64, 3, padding=1),
    ],
)
def test_unsuitable(conv):
    layers = nn.Sequential(conv.requires_grad_(), FusedConv2d(conv.weight, conv.bias, conv))
    conv.bias = None
    use_winograd(layers)
    assert [type(layer) for layer in layers] == [nn.Conv2d, FusedConv2d]


@pytest.mark.parametrize("channels", [64, 128, 256])
def test_bits_of_a_region_do_not_depend_on_the_number_of_regions(channels):
    conv = nn.Conv2d(channels, channels, 3, padding=1)
    layer = nn.Sequential(FusedConv2d(conv.weight, conv.bias, conv))
    use_winograd(layer, regions="0")
    x = torch.randn(40, channels, 14, 14)
    with torch.inference_mode():
        every = layer(x)
        for count in (2, 5, 23):
            if torch.__version__ >= (2, 15):
                assert torch.equal(layer(x[:count]), every[:count])
            else:  # the products of an older library round by their number of rows where there is no AVX-512
                assert_close(layer(x[:count]), every[:count], rtol=0, atol=2e-5)


def trained(inputs=64, outputs=80, dilation=1, bias=False):
    """A convolution in training, and the same by the direct sum in float64."""
    conv = nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=bias))
    exact = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=bias).double()
    exact.load_state_dict(conv[0].state_dict())
    use_winograd(conv)
    return conv[0], exact


@pytest.mark.parametrize("chunk", [1, 1 << 22])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("dilation", "size"), [(1, (9, 17, 30)), (1, (30, 14, 14)), (2, (4, 40, 33)), (6, (2, 60, 49))]
)
def test_gradients_of_a_training(dilation, size, layout, chunk, monkeypatch):
    monkeypatch.setattr(fused, "_CHUNK", chunk)
    torch.manual_seed(0)
    conv, exact = trained(dilation=dilation)
    x = torch.randn(size[0], 64, *size[1:]).to(memory_format=layout).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, expected = conv(x), exact(wide)
    assert "_Convolution" in y.grad_fn.name()
    dy = torch.randn(y.shape)
    pairs = zip(
        (y, *torch.autograd.grad(y, (x, conv.weight), dy)),
        (expected, *torch.autograd.grad(expected, (wide, exact.weight), dy.double())),
    )
    for found, true in pairs:
        assert found.shape == true.shape
        assert (found - true).abs().max() < 1e-5 * true.abs().max()


def test_only_gradients_that_are_asked_for(monkeypatch):
    conv, _ = trained()
    x = torch.randn(5, 64, 32, 32)
    conv(x).sum().backward()
    assert conv.weight.grad is not None
    monkeypatch.setattr(fused, "winograd_gradient", None)  # it would fail
    conv.weight.requires_grad_(False)
    conv(x.requires_grad_()).sum().backward()
    assert x.grad.abs().sum() > 0


def test_the_direct_sum_in_training(monkeypatch):
    conv, _ = trained()
    x = torch.randn(5, 64, 32, 32)
    few, half, wide = conv(x[:1]), x.bfloat16(), x.double()
    assert "_Convolution" not in few.grad_fn.name()
    assert "_Convolution" in trained(128, 192)[0](torch.randn(1, 128, 32, 32)).grad_fn.name(), "as few as pay"
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(x).dtype == torch.bfloat16
    assert conv.bfloat16()(half).dtype == torch.bfloat16
    assert conv.double()(wide).dtype == torch.float64
    conv = conv.float()
    assert "_Convolution" in conv(x).grad_fn.name()
    monkeypatch.setattr(fused, "_has_kernels", lambda: False)
    assert "_Convolution" not in conv(x).grad_fn.name()
    assert type(trained(bias=True)[0]) is nn.Conv2d
    assert type(trained(inputs=48)[0]) is nn.Conv2d
