"""ABN functions, alone, with a residual or its projection, for rows of an upsampling: plain form, gradients, memory."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.op_contract import keeping, place
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.ops.abn import (
    Projection,
    apply_norm,
    apply_plain_norm,
    inplace_abn,
    inplace_abn_projection,
    strided_pixels,
    upsample_abn_rows,
)
from seamseg.ops.abn_steps import Norm
from seamseg.ops.norm import InPlaceABN, NormSequential
from seamseg.ops.upsample import upsample_cross_entropy, upsample_ohem_loss

# words as read from a file, other objects than those of the code
ACTIVATIONS = [("leaky_relu", 0.01), (str(b"elu", "ascii"), 0.7), (str(b"identity", "ascii"), 0.5)]


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


class Call(nn.Module):
    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x):
        return self.function(x, *self.layers)


SIZES = ((9, 9), (7, 8), torch.arange(56).view(7, 8) % 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: InPlaceABN(4),
        lambda: InPlaceABN(4).eval(),
        lambda: NormSequential(nn.Conv2d(4, 4, 3), InPlaceABN(4)),
        lambda: ResidualBlock(4, (4, 4), InPlaceABN),
        lambda: ResidualBlock(4, (4, 8), InPlaceABN, 2),
        lambda: PreActivationBlock(4, (4, 4), InPlaceABN),
        lambda: Call(
            lambda x, norm, layer: norm.upsample_rows(x, torch.tensor([2, 0]), layer),
            InPlaceABN(4),
            nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False),
        ),
        lambda: Call(lambda x: upsample_cross_entropy(x[0], *SIZES)),
        lambda: Call(lambda x: upsample_ohem_loss(x[0], *SIZES, 0.5)),
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.rand(2, 4).double()}, r"input must be floating, N x 3 x ..., got float64 tensor of shape 2x4"),
        ({"x": torch.ones(2, 3).long()}, "input must be floating"),
        ({"x": torch.rand(2, 4).double(), "weight": None, "bias": None}, "input must be floating, N x 3 x"),
        ({"x": torch.rand(2, 4).double(), "running_mean": None, "running_var": None}, "must be floating, N x 3 x"),
        ({"x": torch.rand(2, 3, device="meta")}, "input is on meta, the layer on cpu"),
        ({"weight": torch.rand(1).double()}, r"weight must hold one number a channel \(3\), got float64 tensor"),
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


NAMES = ("x", "weight", "bias", "shortcut", "projection", "projection_weight", "projection_bias")


class Case:
    """Inputs of a residual sum, fused and as separate steps."""

    def __init__(self, training=(True, True), activation=ACTIVATIONS[0], stride=1, shape=(2, 3, 3, 4), **options):
        dtype, frozen = options.get("dtype", torch.float64), options.get("frozen", ())
        generator, (n, c, height, width) = torch.Generator().manual_seed(0), shape

        def random(*size, scale=1.0, offset=0.0):
            return (torch.randn(size, generator=generator, dtype=torch.float64) * scale + offset).to(dtype)

        # a map may be odd where the stride is 2
        shortcut = random(n, c + 1, stride * height - (stride - 1), stride * width - (stride - 1))
        weights = [(random(c, scale=0.3).abs() + 0.3) * torch.tensor([-1, 1, 1, -1] * c)[:c].to(dtype) for _ in "12"]
        values = (random(*shape, scale=2, offset=1), weights[0], random(c), shortcut)
        values += (random(c, c + 1, 1, 1), weights[1], random(c))
        self.inputs = [v.requires_grad_(name not in frozen) for v, name in zip(values, NAMES)]
        self.buffers = [random(c), random(c).abs() + 0.5, random(c), random(c).abs() + 0.5]
        self.training, self.activation, self.stride = training, activation, stride
        self.dy = random(*shape)

    def norms(self, buffers):
        outer = Norm(*buffers[:2], self.training[0], 0.2, 1e-5, *self.activation, None)
        return outer, Norm(*buffers[2:], self.training[1], 0.3, 1e-5, "identity", 1.0, None)

    def projected(self, *inputs, buffers=None):
        x, weight, bias, shortcut, projection, *affine = inputs
        outer, inner = self.norms([b.clone() for b in self.buffers] if buffers is None else buffers)
        stride = (self.stride, self.stride)
        return inplace_abn_projection(x, weight, bias, outer, shortcut, Projection(projection, stride, *affine, inner))

    def added(self, x, weight, bias, residual, buffers=None):
        outer, _ = self.norms([b.clone() for b in self.buffers] if buffers is None else buffers)
        return apply_norm(x, weight, bias, outer, residual)

    def separate(self, x, weight, bias, shortcut, projection=None, *affine):
        """By its definition, without an update of running statistics."""
        outer, inner = (
            None if training else tuple(buffers)
            for training, buffers in zip(self.training, (self.buffers[:2], self.buffers[2:]))
        )
        residual = shortcut
        if projection is not None:
            residual = functional.conv2d(shortcut, projection, None, self.stride)
            residual = oracles.abn(residual, *affine, "identity", 1.0, True, inner)
        z = oracles.abn(x, weight, bias, "identity", 1.0, True, outer) + residual
        return oracles.activate(z, *self.activation)


def gradients(y, inputs, dy):
    return torch.autograd.grad(y, [t for t in inputs if t.requires_grad], dy)


def residual_inputs(case):
    residual = torch.randn(case.inputs[0].shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return [*case.inputs[:3], residual.to(case.dy.dtype).requires_grad_()]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_sums_equal_separate_steps(training, activation, stride, last):
    case = Case(training, activation, stride, (3, 4, 5, 6))
    if last:
        for i in (0, 3):
            case.inputs[i] = case.inputs[i].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    for inputs, fused in ((case.inputs, case.projected), (residual_inputs(case), case.added)):
        buffers = [b.clone() for b in case.buffers]
        y, expected = fused(*inputs, buffers=buffers), case.separate(*inputs)
        assert_close(y, expected)
        assert y.stride() == inputs[0].stride()
        for result, wanted in zip(gradients(y, inputs, case.dy), gradients(expected, inputs, case.dy)):
            assert_close(result, wanted, rtol=1e-8, atol=1e-8)
        with torch.no_grad():
            assert_close(fused(*inputs), y, rtol=0, atol=1e-12)
        maps = [inputs[0], functional.conv2d(*case.inputs[3:5], None, stride) if fused == case.projected else None]
        for x, training_one, momentum, pair in zip(maps, training, (0.2, 0.3), range(2)):
            old, new = case.buffers[2 * pair : 2 * pair + 2], buffers[2 * pair : 2 * pair + 2]
            share = momentum if training_one and x is not None else 0
            wanted = [b.clone() for b in old]
            if share:
                wanted[0].lerp_(x.detach().mean((0, 2, 3)), share)
                wanted[1].lerp_(x.detach().var((0, 2, 3)), share)
            assert_close(new, wanted)


SUBSETS = [
    ("projection",),
    ("shortcut", "projection"),
    ("weight", "bias", "projection_weight", "projection_bias"),
    ("x",),
    ("x", "weight", "bias"),
    NAMES[1:],
]


@pytest.mark.parametrize("frozen", SUBSETS)
@pytest.mark.parametrize("training", [(True, True), (False, False)])
def test_inputs_without_gradients(frozen, training):
    case = Case(training, stride=2, frozen=frozen)
    y = case.projected(*case.inputs)
    y.backward(case.dy)
    wanted = iter(gradients(case.separate(*case.inputs), case.inputs, case.dy))
    for name, tensor in zip(NAMES, case.inputs):
        assert (tensor.grad is None) == (name in frozen)
        if tensor.grad is not None:
            assert_close(tensor.grad, next(wanted), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("half_x", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_projection_under_autocast(half_x, grad):
    case = Case(stride=2, shape=(4, 6, 9, 8), dtype=torch.float32)
    inputs = [t.detach().requires_grad_() for t in case.inputs]
    if half_x:
        inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
        y = case.projected(*inputs)
    assert y.dtype == inputs[0].dtype
    expected = case.separate(*case.inputs)
    assert_close(y.float(), expected, rtol=0.03, atol=0.1)
    if not grad:
        return
    y.backward(case.dy.to(y.dtype))  # outside of autocast, as it should be
    for tensor, wanted in zip(inputs, gradients(expected, case.inputs, case.dy)):
        assert tensor.grad.dtype == tensor.dtype
        assert (tensor.grad.float() - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("training", [True, False])
def test_what_sums_keep(training):
    case = Case((training, training), shape=(2, 3, 16, 16), stride=2)
    x, residual = case.inputs[0], torch.randn(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    for run, other in (
        (lambda: case.added(x * 1, *case.inputs[1:3], residual), residual),
        (lambda: case.projected(x * 1, *case.inputs[1:]), case.inputs[3]),
    ):
        y, kept = keeping(run)
        assert {where for where, tensor in kept.items() if tensor.numel() >= 500} == {place(y), place(other)}


def test_few_channels_are_subsampled_before_a_strided_convolution():
    few, many = torch.zeros(1, 15, 5, 6), torch.zeros(1, 16, 5, 6)
    assert [strided_pixels(x, (2, 2))[0].shape[2] for x in (few, many)] == [3, 5]
    assert strided_pixels(few, (1, 1))[0] is few


def test_a_wrong_residual():
    case = Case()
    for wrong, words in (
        (case.inputs[0][..., :2], r"inplace_abn: residual must be like the input, got .*2x3x3x2.*2x3x3x4"),
        (case.inputs[0].to("meta"), "inplace_abn: residual must be like the input"),
    ):
        with pytest.raises(ValueError, match=words):
            case.added(*case.inputs[:3], wrong)


def region_inputs(dtype=torch.float64, regions=6, offset=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(regions, 5, 3, 4, generator=generator, dtype=torch.float64) + offset
    kernel = torch.randn(5, 7, 2, 2, generator=generator, dtype=torch.float64)
    weight = torch.rand(7, generator=generator, dtype=torch.float64) - 0.4
    bias = torch.randn(7, generator=generator, dtype=torch.float64)
    return [t.to(dtype).requires_grad_() for t in (x, kernel, weight, bias)]


def norm_of_rows(running, activation=("leaky_relu", 0.01)):
    return Norm(*running, True, 0.3, 1e-5, *activation, None)


def running(dtype=torch.float64):
    return torch.zeros(7, dtype=dtype), torch.ones(7, dtype=dtype)


def enlarged(x, rows, kernel, weight, bias, running, activation):
    y = inplace_abn(
        functional.conv_transpose2d(x, kernel, stride=2), weight, bias, *running, True, 0.3, 1e-5, *activation
    )
    return y[rows]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [[4, 1], [0, 1, 2, 3, 4, 5], []])
def test_rows_equal_the_composition(memory_format, activation, rows):
    x, kernel, weight, bias = region_inputs()
    last = x.detach().contiguous(memory_format=memory_format).requires_grad_()
    rows, ours, theirs = torch.tensor(rows, dtype=torch.long), running(), running()
    y = upsample_abn_rows(last, rows, kernel, weight, bias, norm_of_rows(ours, activation))
    expected = enlarged(x, rows, kernel, weight, bias, theirs, activation)
    assert_close(y, expected)
    assert_close(ours, theirs)
    dy = torch.randn_like(expected)
    results = torch.autograd.grad(y, (last, kernel, weight, bias), dy)
    for result, wanted in zip(results, torch.autograd.grad(expected, (x, kernel, weight, bias), dy)):
        assert_close(result, wanted)


def test_gradcheck_and_partial_gradients():
    x, kernel, weight, bias = region_inputs(regions=3)
    rows = torch.tensor([2, 0])

    def run(*tensors):
        return upsample_abn_rows(tensors[0], rows, *tensors[1:], norm_of_rows(running()))

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
    exact = region_inputs(offset=offset)
    rounded = [t.detach().to(dtype) for t in exact]
    expected = enlarged(rounded[0].double(), rows, *(t.double() for t in rounded[1:]), running(), ("leaky_relu", 0.01))
    y = upsample_abn_rows(rounded[0], rows, *(t.float() for t in rounded[1:]), norm_of_rows(running(torch.float32)))
    assert (y.double() - expected).abs().max() < tolerance * expected.abs().max()


def test_keeps_no_map_of_all_regions():
    (x, kernel, weight, bias), rows = region_inputs(), torch.tensor([2])
    y, kept = keeping(lambda: upsample_abn_rows(x * 1, rows, kernel, weight, bias, norm_of_rows(running())))
    assert y.shape == (1, 7, 6, 8)
    assert max(t.numel() for t in kept.values()) == x.numel()
    with pytest.raises(ValueError, match="statistics are frozen"):
        upsample_abn_rows(x, rows, kernel, weight, bias, norm_of_rows(running())._replace(training=False))
