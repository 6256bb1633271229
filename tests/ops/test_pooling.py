"""Box-filter pooling: goldens, plain form, the kernels against plain torch, gradients, accuracy, failures."""

import ast

import pytest
import torch
from support.golden_files import golden, names
from support.op_contract import keeping, same_with_threads
from torch.testing import assert_close

from seamseg.ops import pooling
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.reference import pooling as plain

backward = torch.ops.seamseg.box_filter_pool_backward.default


@pytest.mark.parametrize("name", [n for n in names("global_pooling/") if not n.endswith("/x")])
def test_golden(name):
    window = ast.literal_eval(name.split("/")[1])
    window = window if isinstance(window, tuple) else (window, window)
    assert_close(box_filter_pool(golden("global_pooling/x"), window), golden(name), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 1, 300, 200), (1, 20, 130, 70)])
def test_any_number_of_threads_gives_the_same(shape, memory_format):
    x = torch.randn(shape).contiguous(memory_format=memory_format)
    same_with_threads(lambda: (box_filter_pool(x, (24, 31)), backward(x, 24, 31)))


@pytest.mark.parametrize("window", [(3, 4), (6, 2), (9, 1), (1, 1)])
def test_gradcheck(window):
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: box_filter_pool(x, window), x)


@pytest.mark.parametrize("kind", ["noise", "constant"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("window", [(64, 64), (63, 200)])
def test_accuracy_on_large_maps(offset, window, kind):
    shape = (1, 2, 256, 512)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = noise + offset if kind == "noise" else torch.full(shape, offset + 0.3)
    exact = plain.box_filter_pool(x.double(), *window)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        y = box_filter_pool(x.contiguous(memory_format=memory_format), window)
        error = (y.double() - exact).abs().max() / exact.abs().max()
        assert error <= 1e-6, f"{error:.1e} of the range"


def test_wrong_arguments():
    x = torch.rand(1, 2, 3, 4)
    for wrong in (x[0], x[:, :, :, :0]):
        with pytest.raises(RuntimeError, match="box_filter_pool: expected N x C x H x W with pixels"):
            box_filter_pool(wrong, (2, 2))
    with pytest.raises(RuntimeError, match="box_filter_pool: the window must be positive"):
        box_filter_pool(x, (0, 2))
    assert torch.equal(box_filter_pool(x, (1, 1)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("stride", "size"), [(2, (17, 22)), (4, (3, 300)), (2, (1, 3))])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_max_pooling_is_that_of_torch(dtype, stride, size, memory_format):
    """The results and derivatives are bits of torch's; a byte is kept for each result."""
    x = torch.randn(2, 3, *size).mul(3).round().to(dtype).contiguous(memory_format=memory_format)  # with ties
    results, second = [], []
    for layer in (pooling.MaxPool3x3(stride), torch.nn.MaxPool2d(3, stride, 1)):
        own = x.clone().requires_grad_()
        y, saved = keeping(lambda layer=layer, own=own: layer(own))
        kept = sum(t.untyped_storage().nbytes() for t in saved.values()) / y.numel()
        assert (kept == 1) == isinstance(layer, pooling.MaxPool3x3)
        y.backward(torch.arange(y.numel(), dtype=dtype).view_as(y) % 7)
        (gradient,) = torch.autograd.grad(layer(own).square().sum(), own, create_graph=True)
        results.append((y, own.grad))
        second += torch.autograd.grad(gradient.square().sum(), own)
    for found, wanted in zip(*results):
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()
    assert torch.equal(*second)


def test_what_needs_no_place_is_torchs(monkeypatch):
    monkeypatch.setattr(pooling, "_MaxPool", None)
    for x in (torch.randn(1, 2, 9, 2, requires_grad=True), torch.randn(1, 2, 9, 9)):
        assert torch.equal(pooling.MaxPool3x3(2)(x), torch.nn.MaxPool2d(3, 2, 1)(x))
