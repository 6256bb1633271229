"""Comparison with the `inplace-abn` package itself; its recorded signatures and results are tested without it.

Where torch has CUDA, the build of the package needs nvcc, unless its setup.py finds `torch.has_cuda` false; the layers
are compared on the CPU.
"""

from types import SimpleNamespace

import pytest
import torch
from test_inplace_abn import LAYER_OPTIONS, LAYERS
from torch.testing import assert_close

from seamseg import inplace_abn as ours

layers = pytest.importorskip("inplace_abn", reason="the inplace-abn package is not installed: its build needs nvcc")
functions = pytest.importorskip("inplace_abn.functions")

ACTIVATIONS = [("leaky_relu", 0.01), ("leaky_relu", 0.2), ("elu", 1.0), ("elu", 0.5), ("identity", 0.01)]


@pytest.fixture(scope="module")
def package():
    """The layers and the functions of the package."""
    names = {name: getattr(layers, name) for name in ("active_group", "set_active_group", *LAYERS)}
    return SimpleNamespace(inplace_abn=functions.inplace_abn, inplace_abn_sync=functions.inplace_abn_sync, **names)


def like_each_other(package, name, options, shape, seed=0):
    """A layer of the package and one of ours with one state, and an input with a gradient for the output."""
    torch.manual_seed(seed)
    theirs, mine = (getattr(module, name)(shape[1], **options) for module in (package, ours))
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.3, 1.5)
        if theirs.weight is not None:
            theirs.weight[::2] *= -1
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine, torch.randn(shape) * 2 + 1, torch.randn(shape)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(16, 5), (4, 3, 7, 9), (4, 3, 20)])
def test_numbers_of_the_package(package, name, activation, training, shape):
    options = {"activation": activation[0], "activation_param": activation[1]}
    theirs, mine, x, dy = like_each_other(package, name, options, shape)
    results = []
    for layer in (theirs, mine):
        layer.train(training)
        leaf = x.clone().requires_grad_()
        y = layer(leaf * 1)
        y.backward(dy.clone())
        results.append([y.detach(), leaf.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    for expected, result in zip(*results):
        assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "options", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 1e-2, "momentum": 0.3}]
)
def test_options_of_the_package(package, name, options):
    theirs, mine, x, _ = like_each_other(package, name, options, (4, 3, 7, 9))
    for factor in (1, 2, 3):
        assert_close(mine(x * factor), theirs(x * factor), rtol=1e-4, atol=1e-4)
    assert_close(mine.eval()(x), theirs.eval()(x * 1), rtol=1e-4, atol=1e-4)
    assert {n: getattr(mine, n) for n in LAYER_OPTIONS} == {n: getattr(theirs, n) for n in LAYER_OPTIONS}
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())
    for key, value in mine.state_dict().items():
        assert_close(theirs.state_dict()[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("function", ["inplace_abn", "inplace_abn_sync"])
def test_functions_of_the_package(package, function):
    theirs, mine, x, dy = like_each_other(package, "InPlaceABN", {}, (4, 3, 7, 9))
    results = []
    for module, layer in ((package, theirs), (ours, mine)):
        leaf, running = x.clone().requires_grad_(), (layer.running_mean, layer.running_var)
        y = getattr(module, function)(
            leaf * 1,
            layer.weight,
            layer.bias,
            *running,
            training=True,
            momentum=0.2,
            eps=1e-3,
            activation="elu",
            activation_param=0.8,
        )
        y.backward(dy.clone())
        results.append([y.detach(), leaf.grad, layer.weight.grad, layer.bias.grad, *running])
    for expected, result in zip(*results):
        assert_close(result, expected, rtol=1e-4, atol=1e-4)
