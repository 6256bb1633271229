"""In-place ABN with a residual, and with a projection in its place: gradients, precision, tracing, what is kept."""

import itertools

import pytest
import torch
from support import op_oracles as oracles
from support.op_contract import keeping, place
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops.abn import apply_norm, inplace_abn
from seamseg.ops.abn_channels import Norm
from seamseg.ops.abn_projection import Projection, inplace_abn_projection
from seamseg.ops.norm import InPlaceABN

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
    ("shortcut",),
    ("shortcut", "projection"),
    ("weight", "bias", "projection_weight", "projection_bias"),
    ("x",),
    ("x", "weight", "bias"),
    ("projection_weight", "projection_bias", "shortcut", "projection"),
    NAMES[:6],
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


def test_backward_twice():
    case = Case(stride=2)
    y = case.projected(*case.inputs)
    first, second = (torch.autograd.grad(y, case.inputs, case.dy, retain_graph=True) for _ in "12")
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_without_affine():
    case = Case(stride=2)
    x, _, _, shortcut, projection, *_ = case.inputs
    y = case.projected(x, None, None, shortcut, projection, None, None)
    one, zero = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    expected = case.separate(x, one, zero, shortcut, projection, one, zero)
    assert_close(y, expected, rtol=1e-4, atol=1e-4)  # a weight of 1 stands for a scale of 1 + eps
    for result, wanted in zip(*(gradients(t, (x, shortcut, projection), case.dy) for t in (y, expected))):
        assert_close(result, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (1, 3, 1, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_one_value_or_none(shape, training):
    case = Case((training, training), shape=shape)
    before = [b.clone() for b in case.buffers]
    y = case.projected(*case.inputs, buffers=case.buffers)
    y.backward(case.dy)
    assert y.shape == shape
    assert all(torch.equal(a, b) for a, b in zip(before, case.buffers))
    assert all(t.grad.isfinite().all() for t in case.inputs)


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


def kept_maps(function, least):
    """Storages of the maps that a call leaves for the backward pass; small tensors do not count."""
    y, kept = keeping(function)
    return y, {where: tensor for where, tensor in kept.items() if tensor.numel() >= least}


@pytest.mark.parametrize("training", [True, False])
def test_what_is_kept(training):
    case = Case((training, training), shape=(2, 3, 16, 16), stride=2)
    x, residual = case.inputs[0], torch.randn(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    y, kept = kept_maps(lambda: case.added(x * 1, *case.inputs[1:3], residual), 500)
    assert set(kept) == {place(y), place(residual)}
    y, kept = kept_maps(lambda: case.projected(x * 1, *case.inputs[1:]), 500)
    assert set(kept) == {place(y), place(case.inputs[3])}


class Chain(nn.Module):
    """Residual blocks of one convolution each, fused or as separate steps."""

    def __init__(self, blocks, channels, smallest, largest):
        super().__init__()
        torch.manual_seed(1)
        self.norms = nn.ModuleList(InPlaceABN(channels) for _ in range(blocks))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(blocks))
        for norm, convolution in zip(self.norms, self.convolutions):
            nn.init.uniform_(norm.weight, smallest, largest)
            nn.init.kaiming_normal_(convolution.weight)

    def forward(self, x, fused):
        for norm, convolution in zip(self.norms, self.convolutions):
            branch = functional.conv2d(x, convolution.weight.to(x.dtype), None, 1, 1)
            if fused:
                x = norm.add(branch, x, "leaky_relu", 0.01)
            else:
                z = functional.batch_norm(branch, None, None, norm.weight.abs() + norm.eps, norm.bias, True)
                x = functional.leaky_relu(z + x, 0.01)
        return x

    def gradients(self, x, fused):
        """Of the input, of all weights and biases, and of all kernels; one vector each."""
        x = x.clone().requires_grad_()
        self.zero_grad()
        y = self(x, fused)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y.dtype))
        groups = ([x], [n.weight for n in self.norms], [n.bias for n in self.norms])
        groups += ([c.weight for c in self.convolutions],)
        return [torch.cat([t.grad.float().flatten() for t in group]) for group in groups]


@pytest.mark.parametrize(
    ("smallest", "largest", "cosine"), [(1, 1, 0.96), (0.3, 1, 0.96), (0.05, 0.3, 0.975), (0.05, 0.05, 0.99)]
)
def test_half_precision_over_fifty_blocks(smallest, largest, cosine):
    """Rebuilding costs nothing that rounding 50 maps on the way does not cost anyway."""
    chain, x = Chain(50, 16, smallest, largest), torch.randn(4, 16, 24, 24, generator=torch.Generator().manual_seed(2))
    single = chain.gradients(x, True)
    low = chain.gradients(x.bfloat16(), True), chain.gradients(x.bfloat16(), False)
    exact = chain.double().gradients(x.double(), False)
    for fused, wanted in zip(single, exact):
        # not less: a value that rounding moves across zero has another slope from there on
        assert (fused - wanted).norm() < 0.02 * wanted.norm()
    # With the kernels that oneDNN has for SSE4.1, AVX2 and AVX-512 the cosines are at least 0.976, 0.978, 0.984 and
    # 0.995, a norm is off by up to 0.064 (that of the biases) and an error is up to 1.4 times the separate one's.
    for fused, separate, wanted in zip(*low, exact):
        assert functional.cosine_similarity(fused, wanted, 0) > cosine
        assert abs(fused.norm() / wanted.norm() - 1) < 0.1
        assert (fused - wanted).norm() < 1.8 * (separate - wanted).norm()


def test_a_scale_much_smaller_than_the_residual_blurs_its_own_gradient_only():
    """The gradient of a weight comes from a difference of rounded maps; those of input and residual hardly do."""
    generator = torch.Generator().manual_seed(0)
    x, residual, dy = (torch.randn(8, 16, 32, 32, generator=generator) for _ in range(3))
    weight, bias = torch.full((16,), 2e-3), torch.zeros(16)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [t.to(dtype).clone().requires_grad_() for t in (x, residual)] + [weight.clone().requires_grad_()]
        y = inplace_abn(inputs[0], inputs[2], bias, torch.zeros(16), torch.ones(16), residual=inputs[1])
        results.append([g.float() for g in torch.autograd.grad(y, inputs, dy.to(dtype))])
    for exact, low, share in zip(*results, (0.05, 0.01, 1.0)):
        assert (low - exact).norm() < share * exact.norm()


def test_wrong_residual():
    case = Case()
    with pytest.raises(ValueError, match=r"inplace_abn: residual must be like the input, got .*2x3x3x2.*2x3x3x4"):
        case.added(*case.inputs[:3], case.inputs[0][..., :2])
    with pytest.raises(ValueError, match="inplace_abn: residual must be like the input"):
        case.added(*case.inputs[:3], case.inputs[0].to("meta"))


def test_wrong_projection():
    case = Case()
    wide = case.inputs.copy()
    wide[4] = torch.ones(3, 4, 3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="projection must be 3 x 4 x 1 x 1, got float64 tensor of shape 3x4x3x3"):
        case.projected(*wide)
    norms, x = (InPlaceABN(3), InPlaceABN(3)), torch.randn(2, 3, 4, 4)
    for options in ({"bias": True}, {"bias": False, "padding": 1}, {"bias": False, "groups": 3}):
        convolution = nn.Conv2d(3, 3, 1, **options)
        with pytest.raises(ValueError, match="InPlaceABN: the projection must be 1x1, without bias, padding or groups"):
            norms[0].add_projection(x, x, convolution, norms[1], "leaky_relu", 0.01)
