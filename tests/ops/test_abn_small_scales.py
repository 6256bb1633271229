"""In-place ABN where the scale is less than what storing the output rounds off: gradients against float64."""

import copy
from unittest import mock

import pytest
import torch
import torch.nn.utils.prune
from support import op_oracles as oracles
from support.sections import roi, sem
from torch import nn
from torch.testing import assert_close

from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.semantic import MiniDeepLab
from seamseg.ops import abn as abn_module
from seamseg.ops import abn_steps
from seamseg.ops.abn import apply_norm
from seamseg.ops.abn_steps import Norm, scale_gradient
from seamseg.ops.norm import InPlaceABN, NormSequential, PointwiseConv


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
    assert deferred is not None
    assert torch.equal(y, layer(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("last", [False, True])
def test_the_gradient_through_the_kernel_is_computed_where_it_is_needed(dtype, dim, last):
    generator = torch.Generator().manual_seed(0)
    kernel, dkernel = (torch.randn(4, 6, 3, 3, generator=generator).to(dtype) for _ in range(2))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    wanted = (kernel.to(wide) * dkernel.to(wide)).sum([d for d in range(4) if d != dim])
    if last:
        kernel = kernel.contiguous(memory_format=torch.channels_last)
    dweight = torch.randn(2, kernel.shape[dim], generator=generator).to(wide)
    dweight[1, 1:] = 0
    dkernel.select(dim, 2).fill_(torch.inf)  # not read
    found = scale_gradient(kernel, dkernel, dweight, torch.float32, dim)
    assert found.dtype == torch.float32
    wanted = dweight[0] + torch.where(dweight[1] == 0, 0, wanted * dweight[1])
    assert_close(found, wanted.float())
