"""The interface of the `inplace-abn` package: its signatures and states as recorded in `tests/golden`.

Its results are those of `ops/test_norm.py`.
"""

import inspect
import json

import pytest
import torch
from support.golden_files import DATA
from torch import nn
from torch.testing import assert_close

from seamseg import inplace_abn as ours
from seamseg.ops import norm

PUBLISHED = json.loads((DATA / "inplace_abn.json").read_text())
LAYERS = ("ABN", "InPlaceABN", "InPlaceABNSync")
LAYER_OPTIONS = [name for name, *_ in PUBLISHED["signatures"]["ABN"]]


@pytest.mark.parametrize("name", PUBLISHED["signatures"])
def test_signature(name):
    expected = PUBLISHED["signatures"][name]
    own = list(inspect.signature(getattr(ours, name)).parameters.values())[: len(expected)]
    assert [[p.name] if p.default is p.empty else [p.name, p.default] for p in own] == expected
    assert name in ours.__all__


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_the_network(name):
    layer = getattr(ours, name)(3, activation="elu", activation_param=0.5)
    assert type(layer) is getattr(norm, name)
    assert isinstance(layer, ours.ABN)
    assert list(layer.state_dict()) == PUBLISHED["state"]
    values = [getattr(layer, attribute) for attribute in LAYER_OPTIONS]
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


def test_set_active_group():
    network, group = nn.Sequential(ours.InPlaceABN(2), nn.Sequential(ours.InPlaceABNSync(2))), object()
    ours.set_active_group(network, group)
    assert network[1][0].group is group
    assert not hasattr(network[0], "group")
    assert ours.active_group(True) is None  # nothing to share with
