"""The interface of the `inplace-abn` package: signatures, states, and, where it is installed, its numbers."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from seamseg import inplace_abn as ours
from seamseg.ops import norm

LAYERS = ("ABN", "InPlaceABN", "InPlaceABNSync")
LAYER = {
    "num_features": inspect.Parameter.empty,
    "eps": 1e-5,
    "momentum": 0.1,
    "affine": True,
    "track_running_stats": True,
    "activation": "leaky_relu",
    "activation_param": 0.01,
}
FUNCTION = {
    **dict.fromkeys(("x", "weight", "bias", "running_mean", "running_var"), inspect.Parameter.empty),
    "training": True,
    "momentum": 0.1,
    "eps": 1e-5,
    "activation": "leaky_relu",
    "activation_param": 0.01,
}
SIGNATURES = {
    "ABN": LAYER,
    "InPlaceABN": LAYER,
    "InPlaceABNSync": {**LAYER, "group": None},
    "inplace_abn": FUNCTION,
    "inplace_abn_sync": {**FUNCTION, "group": None},
    "active_group": {"active": inspect.Parameter.empty},
    "set_active_group": {"module": inspect.Parameter.empty, "group": inspect.Parameter.empty},
}
STATE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
ACTIVATIONS = [("leaky_relu", 0.01), ("leaky_relu", 0.2), ("elu", 1.0), ("elu", 0.5), ("identity", 0.01)]


def parameters(function):
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.fixture(scope="module")
def package():
    """The package itself, with its functions beside its layers."""
    layers = pytest.importorskip("inplace_abn")
    functions = pytest.importorskip("inplace_abn.functions")
    names = {name: getattr(layers, name) for name in ("active_group", "set_active_group", *LAYERS)}
    return SimpleNamespace(inplace_abn=functions.inplace_abn, inplace_abn_sync=functions.inplace_abn_sync, **names)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    expected = list(SIGNATURES[name].items())
    assert parameters(getattr(ours, name))[: len(expected)] == expected
    assert name in ours.__all__


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_of_the_package(package, name):
    assert parameters(getattr(package, name)) == list(SIGNATURES[name].items())


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_the_network(name):
    layer = getattr(ours, name)(3, activation="elu", activation_param=0.5)
    assert type(layer) is getattr(norm, name)
    assert isinstance(layer, ours.ABN)
    assert tuple(layer.state_dict()) == STATE
    values = [getattr(layer, attribute) for attribute in LAYER]
    assert values == [3, 1e-5, 0.1, True, True, "elu", 0.5]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_without_running_statistics(name, momentum):
    torch.manual_seed(0)
    layer = getattr(ours, name)(3, momentum=momentum, track_running_stats=False, activation="identity")
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer.running_mean is layer.running_var is layer.num_batches_tracked is None
    layer.reset_running_stats()
    layer.load_state_dict(layer.state_dict())
    x = (torch.randn(8, 3, 5, 5) * 3 + 7).requires_grad_()
    for training in (True, False):
        y = layer.train(training)(x)
        assert_close(y.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
        assert_close(y.std((0, 2, 3), unbiased=False), torch.ones(3), rtol=1e-4, atol=0)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert gradient.abs().max() < 1e-3  # the square sum of normalised values is a constant
    assert layer(x[:1, :, :1, :1]).tolist() == [[[[0.0]]] * 3]
    assert layer(x[:0]).shape == (0, 3, 5, 5)


def test_reset_running_stats():
    layer = ours.InPlaceABN(3)
    layer(torch.randn(4, 3))
    with torch.no_grad():
        layer.weight.fill_(2)
    layer.reset_running_stats()
    assert layer.running_mean.tolist() == [0] * 3
    assert layer.running_var.tolist() == [1] * 3
    assert int(layer.num_batches_tracked) == 0
    assert layer.weight.tolist() == [2] * 3


def test_set_active_group():
    network, group = nn.Sequential(ours.InPlaceABNSync(2), ours.InPlaceABN(2)), object()
    ours.set_active_group(network, group)
    assert network[0].group is group
    assert ours.active_group(True) is None  # nothing to share with


def test_functions_without_statistics():
    x = torch.randn(4, 3, 5, 5)
    for function in (ours.inplace_abn, ours.inplace_abn_sync):
        y = function(x, None, None, None, None, activation="identity")
        assert_close(y.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-6)
        with pytest.raises(ValueError, match="inplace_abn: running_mean and running_var must be given, or training be"):
            function(x, None, None, None, None, training=False)
        with pytest.raises(ValueError, match="inplace_abn: unknown activation 'relu', choose one of leaky_relu"):
            function(x, None, None, None, None, activation="relu")
        with pytest.raises(ValueError, match="inplace_abn: leaky_relu can only be inverted with a positive parameter"):
            function(x, None, None, None, None, activation_param=-0.1)


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
    assert {n: getattr(mine, n) for n in LAYER} == {n: getattr(theirs, n) for n in LAYER}
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
