"""Box-filter pooling: goldens, plain form, the kernels against plain torch, gradients, accuracy, failures."""

import ast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden, names
from support.op_contract import keeping, same_with_threads
from torch.testing import assert_close

from seamseg.ops import pooling
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.reference import pooling as plain

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
backward = torch.ops.seamseg.box_filter_pool_backward.default


@pytest.mark.parametrize("name", [n for n in names("global_pooling/") if not n.endswith("/x")])
def test_golden(name):
    window = ast.literal_eval(name.split("/")[1])
    window = window if isinstance(window, tuple) else (window, window)
    assert_close(box_filter_pool(golden("global_pooling/x"), window), golden(name), rtol=1e-6, atol=1e-6)


@given(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 40), st.integers(1, 60)),
    st.tuples(st.integers(1, 45), st.integers(1, 70)),
    st.sampled_from(["contiguous", "channels_last", "strided"]),
    st.sampled_from(FLOATS),
    st.integers(0, 2**20),
)
def test_kernels_equal_plain(shape, window, layout, dtype, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        x = x.repeat(1, 1, 1, 2)[..., ::2]
    # the sums differ by how they are added up, which half precision then rounds either way
    tolerance = 1e-6 if dtype in (torch.float32, torch.float64) else torch.finfo(dtype).eps
    for kernel, wanted in ((box_filter_pool, plain.box_filter_pool), (backward, plain.box_filter_pool_backward)):
        y, expected = kernel(x, window) if kernel is box_filter_pool else kernel(x, *window), wanted(x, *window)
        assert y.dtype == dtype
        assert y.stride() == expected.stride()
        assert_close(y, expected, rtol=2 * tolerance, atol=tolerance)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 1, 300, 200), (1, 20, 130, 70)])
def test_any_number_of_threads_gives_the_same(shape, memory_format):
    x = torch.randn(shape).contiguous(memory_format=memory_format)
    same_with_threads(lambda: (box_filter_pool(x, (24, 31)), backward(x, 24, 31)))


@pytest.mark.parametrize("window", [(3, 4), (6, 2), (9, 1), (1, 1)])
def test_gradcheck(window):
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: box_filter_pool(x, window), x)
    assert torch.autograd.gradgradcheck(lambda x: box_filter_pool(x, window), x)


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
    for wrong in (x[0], x.long(), x[:, :, :, :0], x[:, :, :0], [x]):
        with pytest.raises(ValueError, match="x must be floating N x C x H x W with pixels, got "):
            box_filter_pool(wrong, (2, 2))
    for window in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match="window must be positive"):
            box_filter_pool(x, window)
    assert torch.equal(box_filter_pool(x, (1, 1)), x)


def check_as_torch(layer, options, x):
    """The results and derivatives of a layer are bits of torch's; return the bytes that it keeps for each result."""
    results, kept, second = [], [], []
    for own_layer in (getattr(pooling, layer)(**options), getattr(torch.nn, layer)(**options)):
        own = x.clone().requires_grad_()
        y, saved = keeping(lambda own_layer=own_layer, own=own: own_layer(own))
        kept.append(sum(t.untyped_storage().nbytes() for t in saved.values()) / y.numel())
        y.backward(torch.arange(y.numel(), dtype=x.dtype).view_as(y) % 7)
        (gradient,) = torch.autograd.grad(own_layer(own).square().sum(), own, create_graph=True)
        results.append((y, own.grad))
        second += torch.autograd.grad(gradient.square().sum(), own)
    for found, wanted in zip(*results):
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()
    assert torch.equal(*second)
    return kept[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil_mode"),
    [
        (3, 2, 1, False),
        (2, 2, 0, True),
        ((3, 5), (2, 1), (1, 2), False),
        (3, 3, 0, True),
        (15, 4, 7, False),
        ((1, 3), 2, 0, False),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_max_pooling_is_that_of_torch(dtype, kernel, stride, padding, ceil_mode, memory_format):
    options = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    x = torch.randn(2, 3, 17, 22).mul(3).round().to(dtype)  # with ties
    assert check_as_torch("MaxPool2d", options, x.contiguous(memory_format=memory_format)) == 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"kernel_size": (1, 256), "padding": (0, 128)}, 1),
        ({"kernel_size": (1, 257), "padding": (0, 128)}, 12),
        ({"kernel_size": (1, 310), "padding": (0, 155)}, 12),
        ({"kernel_size": 2, "dilation": 2}, 12),
    ],
)
def test_large_windows_and_dilation(options, kept):
    x = torch.randn(1, 1, 4, 300)
    layer = {"kernel_size": 3, "stride": 1} | options
    assert check_as_torch("MaxPool2d", layer, x) == pytest.approx(kept, rel=0.5)


def test_what_needs_no_place_is_torchs():
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    y, index = pooling.MaxPool2d(3, return_indices=True)(x)
    assert torch.equal(x.flatten(2).gather(2, index.flatten(2)), y.flatten(2))
    layer = pooling.MaxPool2d(3)
    assert torch.equal(layer(x[0]), layer(x)[0])
    assert not keeping(lambda: layer(x.detach()))[1]
