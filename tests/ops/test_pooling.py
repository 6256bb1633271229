"""Box-filter pooling: goldens, plain form, gradients, accuracy, failures."""

import ast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from seamseg.ops import pooling
from seamseg.ops.pooling import box_filter_pool

from . import oracles
from .golden import golden, names


@pytest.mark.parametrize("name", [n for n in names("global_pooling/") if not n.endswith("/x")])
def test_golden(name):
    window = ast.literal_eval(name.split("/")[1])
    window = window if isinstance(window, tuple) else (window, window)
    assert_close(box_filter_pool(golden("global_pooling/x"), window), golden(name), rtol=1e-6, atol=1e-6)


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
    st.booleans(),
    st.integers(0, 1000),
)
def test_against_plain(shape, window, channels_last, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    y, expected = box_filter_pool(x, window), oracles.box_filter_pool(x, window)
    assert_close(y, expected)
    dy = torch.randn(shape, generator=generator, dtype=torch.float64)
    assert_close(*(torch.autograd.grad(out, x, dy)[0] for out in (y, expected)))
    assert y.is_contiguous() == x.is_contiguous() or y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", [(3, 4), (6, 2), (9, 1), (1, 5), (20, 20)])
def test_in_bands(monkeypatch, window, memory_format):
    x = torch.randn(2, 3, 11, 13).contiguous(memory_format=memory_format).requires_grad_()
    dy = torch.randn_like(x)
    whole = box_filter_pool(x, window)
    gradient = torch.autograd.grad(whole, x, dy)[0]
    monkeypatch.setattr(pooling, "_BAND", 100)
    banded = box_filter_pool(x, window)
    assert_close(whole, banded, rtol=1e-6, atol=1e-6)
    assert banded.is_contiguous(memory_format=memory_format)
    assert_close(torch.autograd.grad(banded, x, dy)[0], gradient)


@pytest.mark.parametrize("window", [(3, 4), (6, 2), (9, 1), (1, 1)])
def test_gradcheck(window):
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: box_filter_pool(x, window), x)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_accuracy_on_large_maps(offset):
    x = torch.randn(1, 4, 256, 512, generator=torch.Generator().manual_seed(0)) + offset
    exact = oracles.box_filter_pool(x.double(), (64, 64))
    error = (box_filter_pool(x, (64, 64)).double() - exact).abs().max()
    assert error <= 1e-5 * max(float(exact.abs().max()), 0.1)


def test_input_is_left_alone_and_format_kept():
    x = torch.randn(1, 8, 6, 7).contiguous(memory_format=torch.channels_last)
    before = x.clone()
    for window in ((64, 64), (3, 3), (1, 1)):
        y = box_filter_pool(x, window)
        assert y.is_contiguous(memory_format=torch.channels_last)
        y.zero_()
        assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float(dtype):
    x = (torch.randn(1, 2, 80, 80) + 30).to(dtype).requires_grad_()
    y = box_filter_pool(x, (64, 64))
    assert y.dtype == dtype
    assert_close(y.float(), oracles.box_filter_pool(x.float(), (64, 64)), rtol=1e-2, atol=0)
    y.float().sum().backward()
    assert x.grad.dtype == dtype


def test_wrong_arguments():
    with pytest.raises(ValueError, match="x must be floating N x C x H x W"):
        box_filter_pool(torch.rand(2, 3, 4), (2, 2))
    with pytest.raises(ValueError, match="window must be positive"):
        box_filter_pool(torch.rand(1, 2, 3, 4), (0, 2))
