"""The steps of in-place ABN as operators: kernels against plain torch, accuracy, threads, contract, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_arguments import plausible
from support.op_contract import same_with_threads
from torch.testing import assert_close

from seamseg.ops.abn_steps import (
    abn_backward_channels,
    abn_forward_channels,
    abn_scale_gradient,
    abn_statistics,
)
from seamseg.ops.reference import abn as plain

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
STEPS = ("abn_statistics", "abn_transform", "abn_backward_reduce", "abn_backward_input")


def arguments(shape, dtype, last=False, with_residual=True, activation=(0, 0.01), seed=0):
    """The arguments of each step; `y` is an output of the activation, as the backward steps expect it."""
    generator = torch.Generator().manual_seed(seed)

    def maps():
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        return values.contiguous(memory_format=torch.channels_last) if last and values.dim() == 4 else values

    def channels():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.randn(shape[1], generator=generator, dtype=torch.float64).to(wide)

    x, dy = maps(), maps()
    residual = maps() if with_residual else None
    mean, scale, bias, offset, slope = (channels() for _ in range(5))
    y = plain.abn_transform(x, mean, scale, bias, residual, *activation)
    if activation[0] == 1:
        # the inverse of a saturated elu amplifies rounding errors
        y = y.clamp(min=-0.95 * activation[1])
    return {
        "abn_statistics": (x,),
        "abn_transform": (x, mean, scale, bias, residual, *activation),
        "abn_backward_reduce": (dy, y, residual, bias, *activation),
        "abn_backward_input": (dy, y, residual, bias, scale, offset, slope, *activation),
    }


def run(step, values, where=torch.ops.seamseg):
    result = getattr(where, step)(*values)
    return result if isinstance(result, tuple) else (result,)


FAR = [(200_000, 1), (100_000, 7), (20_000, 65), (2, 3, 200, 300), (2, 64, 100, 150), (64, 4, 7, 7), (3, 2, 50_000)]


@pytest.mark.parametrize("shape", FAR)
@pytest.mark.parametrize("last", [False, True])
def test_statistics_far_from_zero(shape, last):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 1000
    x = x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x
    mean, var = abn_statistics(x)
    exact_mean, exact_var = plain.abn_statistics(x.double())
    assert_close(var.double(), exact_var, rtol=1e-4, atol=0)
    # in units of the deviation, which is what a normalised map is off by; float32 has steps of 6e-5 at 1000
    assert (mean - exact_mean).abs().max() < 1.5e-4


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("value", [0.0, 0.1, -1234.567])
def test_a_constant_has_no_variance(memory_format, value):
    mean, var = abn_statistics(torch.full((2, 64, 80, 80), value).contiguous(memory_format=memory_format))
    assert_close(mean, torch.full_like(mean, value), rtol=1e-6, atol=0)
    assert (var >= 0).all()
    assert (var <= (2e-5 * value) ** 2).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "last"), [((20_000, 70), False), ((3, 70, 90, 100), True), ((3, 5, 300, 310), False)]
)
@pytest.mark.parametrize("activation", [(0, 0.01), (1, 0.7)])
def test_any_number_of_threads_gives_the_same(shape, last, dtype, activation):
    values = arguments(shape, dtype, last, True, activation)
    same_with_threads(lambda: [t for step in STEPS for t in run(step, values[step])])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("last", [False, True])
def test_saturated_elu(dtype, last):
    values = arguments((3, 2, 4, 4), dtype, last, True, (1, 0.7))
    dy, y, residual, bias, *rest = values["abn_backward_input"]
    y = torch.full_like(y, -0.7)
    for step, given_values in (
        ("abn_backward_reduce", (dy, y, residual, bias, 1, 0.7)),
        ("abn_backward_input", (dy, y, residual, bias, *rest)),
    ):
        for kernel, wanted in zip(run(step, given_values), run(step, given_values, plain)):
            assert kernel.isfinite().all()
            assert_close(kernel, wanted, rtol=max(1e-4, torch.finfo(dtype).eps), atol=1e-4)


# The arithmetic per channel


@given(st.integers(0, 2**20), st.sampled_from([1.0, 1e-3, 1e-7, 0.0]))
def test_forward_channels_have_the_bits_of_plain_torch(seed, size):
    values, others = plausible("abn_forward_channels", seed), plausible("abn_forward_channels", seed)
    for arguments in (values, others):
        arguments[1] *= size  # variances
    results = [*abn_forward_channels(*values), *values[4:7]]
    for result, wanted in zip(results, [*plain.abn_forward_channels(*others), *others[4:7]], strict=True):
        assert (result is None and wanted is None) or torch.equal(result, wanted)


@given(st.integers(0, 2**20), st.sampled_from([1.0, 1e-2, 1e-5, 0.0]), st.booleans())
def test_backward_channels_have_the_bits_of_plain_torch(seed, size, deferred):
    values = plausible("abn_backward_channels", seed)
    values[7] = None if values[7] is None else values[7] * size
    values[9] = deferred
    for result, wanted in zip(abn_backward_channels(*values), plain.abn_backward_channels(*values), strict=True):
        if deferred:
            assert torch.equal(result, wanted)
        else:  # torch does not round all square roots right, which shows in channels that the spacing hides
            assert_close(result, wanted, rtol=1e-6, atol=0)


def test_the_batch_is_averaged_in():
    """With a momentum, without, and not where a batch has no variance; a scalar product is added where it is wanted."""
    mean, var = torch.tensor([2.0]), torch.tensor([8.0])
    for momentum, count, total, wanted in (
        (0.25, 2, None, [0.5, 4.75, 4]),
        (None, 2, None, [0.5, 4.75, 4]),
        (0.25, 1, None, [0.0, 1.0, 3]),
        (0.25, 1, 2.0, [0.5, 4.75, 4]),
        (0.25, 9, 1.0, [0.0, 1.0, 3]),
    ):
        averages = torch.zeros(1), torch.ones(1), torch.tensor(3)
        total = None if total is None else torch.tensor(total, dtype=torch.float64)
        abn_forward_channels(mean, var, total, None, *averages, momentum, 0.0, count)
        assert [float(a) for a in averages] == wanted
    kernel, dweight = torch.tensor([[1.0, 2.0], [torch.inf, 0.0]]), torch.tensor([[3.0, 4.0], [0.5, 0.0]])
    assert abn_scale_gradient(kernel, kernel, dweight).tolist() == [5.5, 4.0]
