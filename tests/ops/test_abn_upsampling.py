"""Enlarged rows with the statistics of all: against the plain composition, gradients, what is kept, failures."""

import pytest
import torch
from support.op_contract import keeping
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops.abn import inplace_abn, upsample_abn_rows
from seamseg.ops.abn_steps import Norm


def inputs(dtype=torch.float64, regions=6, offset=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(regions, 5, 3, 4, generator=generator, dtype=torch.float64) + offset
    kernel = torch.randn(5, 7, 2, 2, generator=generator, dtype=torch.float64)
    weight = torch.rand(7, generator=generator, dtype=torch.float64) - 0.4
    bias = torch.randn(7, generator=generator, dtype=torch.float64)
    return [t.to(dtype).requires_grad_() for t in (x, kernel, weight, bias)]


def norm(running, activation=("leaky_relu", 0.01)):
    return Norm(*running, True, 0.3, 1e-5, *activation, None)


def running(dtype=torch.float64):
    return torch.zeros(7, dtype=dtype), torch.ones(7, dtype=dtype)


def plain(x, rows, kernel, weight, bias, running, activation):
    y = inplace_abn(
        functional.conv_transpose2d(x, kernel, stride=2), weight, bias, *running, True, 0.3, 1e-5, *activation
    )
    return y[rows]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("activation", [("leaky_relu", 0.01), ("elu", 1.0), ("identity", 1.0)])
@pytest.mark.parametrize("rows", [[4, 1], [0, 1, 2, 3, 4, 5], []])
def test_equals_the_composition(memory_format, activation, rows):
    x, kernel, weight, bias = inputs()
    last = x.detach().contiguous(memory_format=memory_format).requires_grad_()
    rows, ours, theirs = torch.tensor(rows, dtype=torch.long), running(), running()
    y = upsample_abn_rows(last, rows, kernel, weight, bias, norm(ours, activation))
    expected = plain(x, rows, kernel, weight, bias, theirs, activation)
    assert_close(y, expected)
    assert_close(ours, theirs)
    dy = torch.randn_like(expected)
    results = torch.autograd.grad(y, (last, kernel, weight, bias), dy)
    for result, wanted in zip(results, torch.autograd.grad(expected, (x, kernel, weight, bias), dy)):
        assert_close(result, wanted)


def test_gradcheck_and_partial_gradients():
    x, kernel, weight, bias = inputs(regions=3)
    rows = torch.tensor([2, 0])

    def run(*tensors):
        return upsample_abn_rows(tensors[0], rows, *tensors[1:], norm(running()))

    assert torch.autograd.gradcheck(run, (x, kernel, weight, bias))
    kernel.requires_grad_(False)
    weight.requires_grad_(False)
    run(x, kernel, weight, bias).sum().backward()
    assert kernel.grad is None
    assert weight.grad is None
    assert x.grad is not None
    assert bias.grad is not None


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 4e-2)])
def test_offset_does_not_cancel(dtype, tolerance):
    """Features far from 0: sums of squares would lose the variance."""
    rows, offset = torch.tensor([1, 3]), 300.0 if dtype == torch.float32 else 0.5
    exact = inputs(offset=offset)
    rounded = [t.detach().to(dtype) for t in exact]
    expected = plain(rounded[0].double(), rows, *(t.double() for t in rounded[1:]), running(), ("leaky_relu", 0.01))
    y = upsample_abn_rows(rounded[0], rows, *(t.float() for t in rounded[1:]), norm(running(torch.float32)))
    assert (y.double() - expected).abs().max() < tolerance * expected.abs().max()


def test_keeps_no_map_of_all_regions():
    x, kernel, weight, bias = inputs()
    y, kept = keeping(lambda: upsample_abn_rows(x * 1, torch.tensor([2]), kernel, weight, bias, norm(running())))
    assert y.shape == (1, 7, 6, 8)
    assert max(t.numel() for t in kept.values()) == x.numel()


def test_frozen_statistics_are_refused():
    x, *parameters = inputs()
    with pytest.raises(ValueError, match="statistics are frozen"):
        upsample_abn_rows(x, torch.tensor([0]), *parameters, norm(running())._replace(training=False))
