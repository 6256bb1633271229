"""ABN functions: plain form, gradients, what is saved, memory formats, degenerate inputs, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.op_contract import keeping, place
from torch import nn
from torch.testing import assert_close

from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.ops.abn import apply_plain_norm, inplace_abn
from seamseg.ops.abn_steps import Norm
from seamseg.ops.activation import activate, activate_, activation_gradient, deactivate
from seamseg.ops.norm import InPlaceABN, NormSequential
from seamseg.ops.upsample import upsample_cross_entropy, upsample_ohem_loss

ACTIVATIONS = [("leaky_relu", 0.01), ("leaky_relu", 0.3), ("elu", 1.0), ("elu", 0.7), ("identity", 0.01)]


def abn(x, weight, bias, running_mean, running_var, training=True, *options, activation="leaky_relu"):
    options = options or (0.1, 1e-5, activation, 0.01)
    return apply_plain_norm(x, weight, bias, Norm(running_mean, running_var, training, *options, None))


FUNCTIONS = [(abn, False), (inplace_abn, True)]


def inputs(shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=dtype) * 2 + 1
    weight = torch.rand(shape[1], generator=generator, dtype=dtype) + 0.3
    weight[::2] *= -1
    bias = torch.randn(shape[1], generator=generator, dtype=dtype)
    mean = torch.randn(shape[1], generator=generator, dtype=dtype)
    var = torch.rand(shape[1], generator=generator, dtype=dtype) + 0.5
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), mean, var


shapes = st.sampled_from([(2, 3), (5, 1), (1, 2, 3), (2, 3, 4, 5), (1, 4, 1, 7), (2, 2, 2, 3, 2)])


@given(
    shapes,
    st.sampled_from(ACTIVATIONS),
    st.sampled_from(FUNCTIONS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_against_plain(shape, activation, function, training, affine, seed):
    op, inplace = function
    x, weight, bias, mean, var = inputs(shape, seed)
    statistics = None if training else (mean.clone(), var.clone())
    if affine:
        expected = oracles.abn(x, weight, bias, *activation, inplace, statistics)
    else:
        expected = oracles.abn(x, torch.ones_like(weight), torch.zeros_like(bias), *activation, False, statistics)
        weight = bias = None
    before, given_x = (mean.clone(), var.clone()), x.detach().clone()
    y = op(x, weight, bias, mean, var, training, 0.2, 1e-5, *activation)
    assert_close(y, expected)
    assert torch.equal(x, given_x)
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    leaves = (x, weight, bias) if affine else (x,)
    gradients = [torch.autograd.grad(out, leaves, dy) for out in (y, expected)]
    for result, wanted in zip(*gradients):
        assert_close(result, wanted, rtol=1e-5, atol=1e-7)
    axes = [0, *range(2, x.dim())]
    share = 0.2 if training else 0.0
    assert_close(mean, before[0] * (1 - share) + share * x.detach().mean(axes))
    assert_close(var, before[1] * (1 - share) + share * x.detach().var(axes, unbiased=True))


@pytest.mark.parametrize("training", [True, False])
def test_inplace_saves_only_its_output(training):
    x, weight, bias, mean, var = inputs((2, 3, 8, 8))
    for op, count in ((inplace_abn, 1), (abn, 2)):
        y, kept = keeping(lambda op=op: op(x * 1, weight, bias, mean, var, training))
        maps = {where for where, tensor in kept.items() if tensor.numel() == x.numel()}
        assert place(y) in maps
        assert len(maps) == count


@pytest.mark.parametrize("op", [abn, inplace_abn])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
def test_memory_format_is_kept(op, memory_format, training):
    x, weight, bias, mean, var = inputs((2, 3, 4, 5), dtype=torch.float32)
    x = x.detach().contiguous(memory_format=memory_format).requires_grad_()
    y = op(x, weight, bias, mean, var, training)
    assert y.is_contiguous(memory_format=memory_format)
    # the gradient may come in the other format
    y.backward(torch.randn(2, 3, 4, 5))
    if op is inplace_abn:
        assert x.grad.is_contiguous(memory_format=memory_format)
    with torch.no_grad():
        assert_close(op(x, weight, bias, mean, var, False), op(x.contiguous(), weight, bias, mean, var, False))


@pytest.mark.parametrize("op", [abn, inplace_abn])
@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (0, 3), (0, 3, 4, 4)])
@pytest.mark.parametrize("training", [True, False])
def test_one_value_or_none(op, shape, training):
    x, weight, bias, mean, var = inputs(shape)
    before = mean.clone(), var.clone()
    y = op(x, weight, bias, mean, var, training)
    y.sum().backward()
    assert y.shape == shape
    assert torch.equal(mean, before[0])
    assert torch.equal(var, before[1])
    for tensor in (y, x.grad, weight.grad, bias.grad):
        assert tensor.isfinite().all()
    if training and x.numel():
        assert_close(y.flatten(), oracles.activate(bias, "leaky_relu", 0.01).detach())
        assert x.grad.abs().max() < 1e-12  # of the rounding of a rebuilt 0
        assert_close(op(x, weight, bias, None, None, training), y)


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.enlarge = InPlaceABN(4), nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False)

    def forward(self, x):
        return self.norm.upsample_rows(x, torch.tensor([2, 0]), self.enlarge)


class Entropy(nn.Module):
    def forward(self, x):
        return upsample_cross_entropy(x[0], (9, 9), (7, 8), torch.arange(56).view(7, 8) % 4)


class Ohem(nn.Module):
    def forward(self, x):
        return upsample_ohem_loss(x[0], (9, 9), (7, 8), torch.arange(56).view(7, 8) % 4, 0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: InPlaceABN(4),
        lambda: InPlaceABN(4).eval(),
        lambda: NormSequential(nn.Conv2d(4, 4, 3), InPlaceABN(4)),
        lambda: ResidualBlock(4, (4, 4), InPlaceABN),
        lambda: ResidualBlock(4, (4, 8), InPlaceABN, 2),
        lambda: PreActivationBlock(4, (4, 4), InPlaceABN),
        Rows,
        Entropy,
        Ohem,
    ],
)
def test_a_second_derivative_is_an_error(make):
    """Also of what comes before, where a graph that is cut would give a part of the sum."""
    torch.manual_seed(0)
    before, module = nn.Conv2d(3, 4, 1).double(), make().double()
    x = torch.randn(3, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    y = module(before(x))
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    penalty = gradient.square().sum()
    for wanted in ((before.weight,), (x,), tuple(module.parameters())[:1]):
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(penalty, wanted or x, retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        penalty.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [abn, inplace_abn])
def test_half_precision_input_with_float_parameters(op, dtype):
    x, weight, bias, mean, var = inputs((4, 3, 16, 16), dtype=torch.float32)
    low = x.detach().to(dtype).requires_grad_()
    y, wide = op(low, weight, bias, mean.clone(), var.clone()), op(x, weight, bias, mean, var)
    assert y.dtype == dtype
    assert mean.dtype == torch.float32
    assert_close(y.float(), wide, rtol=0.02, atol=0.03)
    dy = torch.randn_like(x)
    results = torch.autograd.grad(y, (low, weight, bias), dy.to(dtype))
    wanted = torch.autograd.grad(wide, (x, weight, bias), dy)
    for result, expected in zip(results, wanted):
        assert (result.float() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_helpers(activation):
    z = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    y = activate(z, *activation)
    assert_close(y, oracles.activate(z, *activation))
    assert torch.equal(activate_(z.detach().clone(), *activation), y)
    assert_close(deactivate(y.detach(), *activation), z.detach())
    dy = torch.randn_like(y)
    expected = dy if activation[0] == "identity" else torch.autograd.grad(y, z, dy)[0]
    assert_close(activation_gradient(dy, y.detach(), *activation), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.rand(2, 4).double()}, r"input must be floating, N x 3 x ..., got float64 tensor of shape 2x4"),
        ({"x": torch.ones(2, 3).long()}, "input must be floating"),
        ({"x": torch.rand(2, 4).double(), "weight": None, "bias": None}, "input must be floating, N x 3 x"),
        ({"x": torch.rand(2, 4).double(), "running_mean": None, "running_var": None}, "must be floating, N x 3 x"),
        ({"x": torch.rand(2, 3, device="meta")}, "input is on meta, the layer on cpu"),
        (
            {"weight": torch.rand(1).double()},
            r"weight must hold one number a channel \(3\), got float64 tensor of shape 1",
        ),
        ({"bias": torch.rand(1, 3)}, r"bias must hold one number a channel \(3\)"),
        ({"running_var": torch.rand(2)}, r"running_var must hold one number a channel \(3\)"),
        ({"running_var": None, "training": False}, "running_mean and running_var must be given, or training be True"),
        ({"activation": "swish"}, "unknown activation 'swish', choose one of leaky_relu, elu, identity"),
    ],
)
@pytest.mark.parametrize("op", [abn, inplace_abn])
def test_wrong_arguments(op, changes, words):
    names = ("x", "weight", "bias", "running_mean", "running_var")
    with pytest.raises(ValueError, match=words):
        op(**dict(zip(names, inputs((2, 3, 4, 4)))) | changes)
