"""In-place ABN with a residual, and with a projection in its place: gradients, precision, tracing, what is kept."""

import itertools

import pytest
import torch
from support import op_oracles as oracles
from support.op_contract import keeping, place
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops.abn import Projection, apply_norm, inplace_abn_projection
from seamseg.ops.abn_steps import Norm

ACTIVATIONS = [("leaky_relu", 0.01), ("elu", 0.7), ("identity", 1.0)]
NAMES = ("x", "weight", "bias", "shortcut", "projection", "projection_weight", "projection_bias")


class Case:
    """Inputs of a residual sum, fused and as separate steps."""

    def __init__(self, training=(True, True), activation=ACTIVATIONS[0], stride=1, shape=(2, 3, 3, 4), **options):
        generator = torch.Generator().manual_seed(options.pop("seed", 0))
        dtype = options.pop("dtype", torch.float64)
        frozen = options.pop("frozen", ())
        assert not options
        n, c, height, width = shape

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
        """By the operator."""
        x, weight, bias, shortcut, projection, *affine = inputs
        outer, inner = self.norms([b.clone() for b in self.buffers] if buffers is None else buffers)
        stride = (self.stride, self.stride)
        return inplace_abn_projection(x, weight, bias, outer, shortcut, Projection(projection, stride, *affine, inner))

    def added(self, x, weight, bias, residual, buffers=None):
        """By the operator that takes a residual."""
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
def test_equal_to_separate_steps(training, activation, stride, last):
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


def test_without_affine():
    case = Case(stride=2)
    x, _, _, shortcut, projection, *_ = case.inputs
    y = case.projected(x, None, None, shortcut, projection, None, None)
    one, zero = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    expected = case.separate(x, one, zero, shortcut, projection, one, zero)
    assert_close(y, expected, rtol=1e-4, atol=1e-4)  # a weight of 1 stands for a scale of 1 + eps
    for result, wanted in zip(*(gradients(t, (x, shortcut, projection), case.dy) for t in (y, expected))):
        assert_close(result, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("half_x", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_autocast(half_x, grad):
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
def test_what_is_kept(training):
    case = Case((training, training), shape=(2, 3, 16, 16), stride=2)
    x, residual = case.inputs[0], torch.randn(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    for run, other in (
        (lambda: case.added(x * 1, *case.inputs[1:3], residual), residual),
        (lambda: case.projected(x * 1, *case.inputs[1:]), case.inputs[3]),
    ):
        y, kept = keeping(run)
        assert {where for where, tensor in kept.items() if tensor.numel() >= 500} == {place(y), place(other)}


def test_wrong_arguments():
    case = Case()
    for wrong, words in (
        (case.inputs[0][..., :2], r"inplace_abn: residual must be like the input, got .*2x3x3x2.*2x3x3x4"),
        (case.inputs[0].to("meta"), "inplace_abn: residual must be like the input"),
    ):
        with pytest.raises(ValueError, match=words):
            case.added(*case.inputs[:3], wrong)
