"""The steps of in-place ABN as operators: accuracy, threads, bits of plain torch; scales that storing rounds off."""

import copy
from unittest import mock

import pytest
import torch
import torch.nn.utils.prune
from hypothesis import example, given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.op_arguments import plausible
from support.op_contract import same_with_threads
from support.sections import roi, sem
from torch import nn
from torch.testing import assert_close

from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.semantic import MiniDeepLab
from seamseg.ops import abn as abn_module
from seamseg.ops import abn_steps
from seamseg.ops.abn import apply_norm
from seamseg.ops.abn_steps import (
    Norm,
    abn_backward_channels,
    abn_forward_channels,
    abn_scale_gradient,
    abn_statistics,
)
from seamseg.ops.norm import InPlaceABN, NormSequential, PointwiseConv
from seamseg.ops.reference import abn as plain

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
STEPS = ("abn_statistics", "abn_transform", "abn_backward_reduce", "abn_backward_input")


def arguments(shape, dtype, last=False, activation=(0, 0.01)):
    """The arguments of each step; `y` is an output of the activation, as the backward steps expect it."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    maps = (draw(*shape).to(dtype) for _ in range(3))
    x, dy, residual = (m.contiguous(memory_format=torch.channels_last) if last and m.dim() == 4 else m for m in maps)
    mean, scale, bias, offset, slope = (draw(shape[1]).to(wide) for _ in range(5))
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
    values = arguments(shape, dtype, last, activation)
    same_with_threads(lambda: [t for step in STEPS for t in run(step, values[step])])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("last", [False, True])
def test_saturated_elu(dtype, last):
    values = arguments((3, 2, 4, 4), dtype, last, (1, 0.7))
    dy, y, residual, bias, *rest = values["abn_backward_input"]
    y = torch.full_like(y, -0.7)
    for step, given_values in (
        ("abn_backward_reduce", (dy, y, residual, bias, 1, 0.7)),
        ("abn_backward_input", (dy, y, residual, bias, *rest)),
        ("abn_backward_input", (dy, y, None, bias, *rest)),
    ):
        for kernel, wanted in zip(run(step, given_values), run(step, given_values, plain)):
            assert kernel.isfinite().all()
            assert_close(kernel, wanted, rtol=max(1e-4, torch.finfo(dtype).eps), atol=1e-4)


@given(st.integers(0, 2**20), st.sampled_from([1.0, 1e-3, 1e-7, 0.0]))
def test_forward_channels_have_the_bits_of_plain_torch(seed, size):
    values, others = plausible("abn_forward_channels", seed), plausible("abn_forward_channels", seed)
    for arguments in (values, others):
        arguments[1] *= size  # variances
    results = [*abn_forward_channels(*values), *values[4:7]]
    for result, wanted in zip(results, [*plain.abn_forward_channels(*others), *others[4:7]], strict=True):
        assert (result is None and wanted is None) or torch.equal(result, wanted)


@given(st.integers(0, 2**20), st.sampled_from([1.0, 1e-2, 1e-5, 0.0]), st.booleans())
@example(1443, 1e-2, True)  # some scales are corrected, but resolved
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
    for step in (abn_scale_gradient, plain.abn_scale_gradient):
        assert step(kernel, kernel, dweight).tolist() == [5.5, 4.0]


# Scales that are less than what storing the output rounds off: gradients against float64


def convolution_and_norm():
    return NormSequential(nn.Conv2d(16, 24, 3, padding=1, bias=False), InPlaceABN(24))


def block(in_channels=16, stride=1):
    return ResidualBlock(in_channels, (8, 8, 16), InPlaceABN, stride)


class Masks(nn.Module):
    """The mask branch, in training with the rows that are wanted."""

    def __init__(self):
        super().__init__()
        self.head = ROIHead(roi(fc_channels=8, conv_channels=16), 16, 3, InPlaceABN)

    def forward(self, x):
        return self.head.masks(x, torch.tensor([5, 0, 2]))


class Standardised(nn.Conv2d):
    def forward(self, x):
        kernel = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, kernel / kernel.std((1, 2, 3), keepdim=True), None, self.stride, self.padding)


def own(layer):
    return lambda: NormSequential(layer(), InPlaceABN(16))


def hooked():
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    layer.register_forward_hook(lambda module, inputs, y: y.sin() + inputs[0])
    return layer


OWN = [(own(lambda: Standardised(16, 16, 3, padding=1)), 16, "1"), (own(hooked), 16, "1")]
"""Layers whose output is not linear in a kernel: the norm keeps it."""

PLACES = [
    # what makes the module, channels of its input, the norm whose scales are small
    (convolution_and_norm, 16, "1"),
    (block, 16, "convs.bn1"),
    (block, 16, "convs.bn3"),
    (lambda: block(8, 2), 8, "convs.bn3"),
    (lambda: block(8, 2), 8, "proj_bn"),
    (lambda: MiniDeepLab(sem(hidden_channels=8, pooling_size=(5, 5)), 16, InPlaceABN), 16, "bn1"),
    (Masks, 16, "head.conv.bn2"),
    (Masks, 16, "head.conv.bn_up"),
]


def module_and_input(make, channels, name, scale, size=14):
    """A module with some small scales in one norm, offsets of about 1, and numbers that bfloat16 holds."""
    torch.manual_seed(0)
    module = make()
    norm = module.get_submodule(name)
    with torch.no_grad():
        # more of them, and the layers after the norm have nothing to normalise
        norm.weight[::3] = scale
        norm.weight[::2] *= -1
        norm.bias.normal_()
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.bfloat16())
    return module, norm, torch.randn(8, channels, size, size).bfloat16()


def weight_gradient(module, name, x):
    y = module(x)
    weight = module.get_submodule(name).weight
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) + 0.3
    return torch.autograd.grad(y, weight, dy.to(y.dtype))[0]


def spacing(value):
    """Another spacing of the stored numbers at 1, as seen by the backward pass."""
    original = abn_steps.abn_backward_channels
    return mock.patch.object(abn_steps, "abn_backward_channels", lambda *given: original(*given[:-1], value))


@pytest.mark.parametrize("scale", [1e-3, 1e-5, 0])
@pytest.mark.parametrize(("make", "channels", "name"), PLACES + OWN, ids=lambda v: v if isinstance(v, str) else "")
def test_gradient_of_small_scales_in_bfloat16(make, channels, name, scale):
    module, _, x = module_and_input(make, channels, name, scale)
    exact = weight_gradient(copy.deepcopy(module).double(), name, x.double())
    with torch.autocast("cpu", torch.bfloat16):
        low = weight_gradient(module, name, x)
    assert (low - exact)[::3].norm() < 0.15 * exact[::3].norm()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("make", "channels", "name"), PLACES, ids=lambda v: v if isinstance(v, str) else "")
def test_gradient_through_the_kernel_is_exact(make, channels, name, training):
    """All scales taken for too small, in float64."""
    module, norm, x = module_and_input(make, channels, name, 0.5)
    module.double().train(training)
    norm.running_mean.normal_()
    original = abn_module.gradient_sums

    def too_small(dy, y, residual, weight, *arguments):
        with spacing(torch.inf if weight is norm.weight else 0.0):
            return original(dy, y, residual, weight, *arguments)

    exact = weight_gradient(module, name, x.double())
    with mock.patch.object(abn_module, "gradient_sums", too_small):
        deferred = weight_gradient(module, name, x.double())
    assert_close(deferred, exact, rtol=1e-7, atol=1e-7)
    assert not torch.equal(deferred, exact)


@pytest.mark.parametrize("activation", [("leaky_relu", 0.01), ("elu", 1.0), ("identity", 1.0)])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("scale", [3e-3, 1e-3, 1e-4, 1e-6])
def test_bounded_without_the_convolution(activation, with_residual, scale):
    generator = torch.Generator().manual_seed(0)
    x, residual, dy = (torch.randn(4, 32, 24, 24, generator=generator).bfloat16() for _ in range(3))
    weight, bias = torch.full((32,), scale), torch.randn(32, generator=generator)
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        leaves = [x.to(dtype).requires_grad_(), weight.to(wide).requires_grad_()]
        other = residual.to(dtype) if with_residual else None
        if dtype == torch.float64:
            z = oracles.abn(*leaves, bias.double(), "identity", 1.0, True)
            y = oracles.activate(z if other is None else z + other, *activation)
        else:
            y = apply_norm(*leaves, bias, Norm(None, None, True, 0.1, 1e-5, *activation, None), other)
        results.append(torch.autograd.grad(y, leaves, (dy + 0.3).to(dtype)))
    for exact, low in zip(*results):
        assert low.norm() < 1.2 * exact.norm()
    # elu inverts what it has rounded near -1 with few digits left
    assert (results[1][0] - results[0][0]).norm() < 0.3 * results[0][0].norm()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0])
def test_float32_is_as_before(scale):
    """Every scale is resolved beside offsets of about 1: not a bit differs, and the least scale has 2 digits."""
    module, _, x = module_and_input(block, 16, "convs.bn3", scale)
    x = x.float()
    ours = weight_gradient(module, "convs.bn3", x)
    with spacing(0.0):
        assert torch.equal(weight_gradient(module, "convs.bn3", x), ours)
    exact = weight_gradient(copy.deepcopy(module).double(), "convs.bn3", x.double())
    assert (ours - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("scale", [1.0, 0.05, 0.02, 1e-3])
def test_channels_of_small_variance(scale):
    """Their `x_hat` is far below 1: it is lost at scales at which that of others is not."""
    torch.manual_seed(0)
    module = convolution_and_norm()
    with torch.no_grad():
        module[0].weight[::2] *= 5e-4
        module[0].weight.copy_(module[0].weight.bfloat16())
        module[1].weight.fill_(scale)
        module[1].bias.uniform_(0.5, 1.5)
    x, found = torch.randn(4, 16, 20, 20).bfloat16(), []
    for dtype in (torch.float64, torch.bfloat16):
        net = copy.deepcopy(module).double() if dtype == torch.float64 else module
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float64):
            y = net(x.to(dtype))
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) + 0.3
        found.append(torch.autograd.grad(y, net[1].weight, dy.to(y.dtype))[0].double())
    for channels in (slice(0, None, 2), slice(1, None, 2)):
        exact, rounded = (gradient[channels] for gradient in found)
        assert (rounded - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
        lambda: nn.utils.prune.random_unstructured(nn.Conv2d(4, 4, 1), "weight", 0.3),
        lambda: nn.ConvTranspose2d(4, 4, 2, groups=2),
        lambda: nn.ConvTranspose2d(4, 4, 2, groups=4),
    ],
)
def test_kernels_that_cannot_be_exchanged(layer):
    """The norm is on its own then: the gradients of separate calls."""
    torch.manual_seed(0)
    layer, norm, x = layer(), InPlaceABN(4), torch.randn(2, 4, 5, 5)
    found = []
    for run in (NormSequential(layer, norm), lambda x: norm(layer(x))):
        y = run(x)
        found.append(torch.autograd.grad(y.pow(2).sum(), [*layer.parameters(), *norm.parameters()]))
    assert_close(*found)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding_mode="circular", padding=1), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding="valid", groups=2), (2, 4, 9, 9)),
        (PointwiseConv(4, 6, 1, stride=2, bias=False), (2, 4, 9, 9)),
        (nn.Conv3d(4, 6, 3, dilation=2), (2, 4, 9, 9, 9)),
        (nn.Linear(4, 6), (5, 4)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2), (2, 4, 9, 9)),
    ],
)
def test_a_layer_computes_the_same_together_with_its_norm(layer, shape):
    x = torch.randn(shape)
    y, deferred = InPlaceABN(6).convolve(layer, x)
    assert deferred.untyped_storage().nbytes() == 24, "that of the weight"
    assert torch.equal(y, layer(x))
