"""Normalisation layers: goldens, state dicts, variants, failures."""

import copy
import io
import re

import pytest
import torch
from support.golden_files import golden, names
from torch import nn
from torch.testing import assert_close

from seamseg.ops.norm import (
    ABN,
    ActivatedGroupNorm,
    ActivatedIdentity,
    InPlaceABN,
    InPlaceABNSync,
    is_pointwise,
    is_trained_in_half,
    synchronised_over,
)

LAYERS = {"ABN": ABN, "InPlaceABN": InPlaceABN}
CASES = sorted({n.split("/")[1] for n in names("abn/") if re.search(r"_(train|eval)/", n)})
STATE = ("weight", "bias", "running_mean", "running_var")


def with_stored_state(layer):
    layer.load_state_dict({name: golden(f"abn/{name}") for name in layer.state_dict() if name in STATE})
    return layer


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_golden(case, memory_format):
    kind, activation, param, mode = re.match(r"([A-Za-z]+)_([a-z_]+)([\d.]+)_(train|eval)", case).groups()
    classes = [LAYERS[kind], InPlaceABNSync] if kind == "InPlaceABN" else [LAYERS[kind]]
    for layer_class in classes:
        layer = with_stored_state(layer_class(6, activation=activation, activation_param=float(param)))
        layer.train(mode == "train")
        x = golden("abn/x").contiguous(memory_format=memory_format).requires_grad_()
        y = layer(x)
        assert y.is_contiguous(memory_format=memory_format)
        y.backward(golden("abn/dy"))
        assert kind == "ABN" or x.grad.is_contiguous(memory_format=memory_format)
        exact = {"y": y, "dx": x.grad, "dbias": layer.bias.grad}
        exact |= {n: getattr(layer, n) for n in ("running_mean", "running_var", "num_batches_tracked")}
        for name, value in exact.items():
            assert_close(value, golden(f"abn/{case}/{name}"), rtol=1e-5, atol=2e-6)
        # channels with a scale of .01 and .001: rebuilding x_hat from y loses that many digits
        tight = torch.tensor([0, 1, 2, 5])
        wanted = golden(f"abn/{case}/dweight")
        assert_close(layer.weight.grad[tight], wanted[tight], rtol=1e-5, atol=2e-6)
        assert_close(layer.weight.grad, wanted, rtol=1e-4, atol=1e-4)
        if mode == "eval":
            with torch.no_grad():
                assert_close(layer(x), golden(f"abn/{case}/y"), rtol=1e-5, atol=2e-6)
        if kind == "InPlaceABN":
            y = with_stored_state(layer_class(6))(golden("abn/2d/x"))
            assert_close(y, golden("abn/2d/y"), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("layer_class", [ABN, InPlaceABN])
def test_golden_cumulative_average(layer_class):
    layer, x = layer_class(6, momentum=None), golden("abn/x")
    for batch in (x, 2 * x + 1, 3 * x + 2):
        layer(batch)
    assert int(layer.num_batches_tracked) == 3
    for name in ("running_mean", "running_var"):
        expected = golden(f"abn/cumulative_momentum_none/{name}")
        assert_close(getattr(layer, name), expected, rtol=1e-5, atol=1e-5)


def test_golden_group_norm_and_identity():
    layer = with_stored_state(ActivatedGroupNorm(6, num_groups=3))
    assert_close(layer(golden("abn/x")), golden("abn/group_norm3/y"), rtol=1e-5, atol=2e-6)
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer, x = ActivatedIdentity(3, "elu", 0.5), torch.randn(2, 3, 4, 4)
    assert not layer.state_dict()
    assert torch.equal(layer(x), torch.nn.functional.elu(x, 0.5))


@pytest.mark.parametrize("layer_class", [ABN, InPlaceABN, InPlaceABNSync])
def test_state_dict(layer_class):
    layer = layer_class(4)
    assert list(layer.state_dict()) == [*STATE, "num_batches_tracked"]
    old = {k: torch.full_like(v, 3.0) for k, v in layer.state_dict().items() if k != "num_batches_tracked"}
    layer(torch.randn(2, 4))
    layer.load_state_dict(old)
    assert torch.equal(layer.running_var, torch.full((4,), 3.0))
    assert int(layer.num_batches_tracked) == 0
    assert "num_batches_tracked" not in old
    layer.reset_parameters()
    assert [p.tolist() for p in layer.parameters()] == [[1] * 4, [0] * 4]
    with pytest.raises(RuntimeError, match="running_var"):
        layer.load_state_dict({k: v for k, v in old.items() if k != "running_var"})


def test_without_affine():
    layer = InPlaceABN(4, affine=False)
    assert list(layer.state_dict()) == ["running_mean", "running_var", "num_batches_tracked"]
    layer(torch.randn(3, 4, 2, 2, requires_grad=True)).sum().backward()
    layer.reset_parameters()
    assert layer.running_var.tolist() == [1] * 4


@pytest.mark.parametrize("layer_class", [ABN, InPlaceABN, InPlaceABNSync])
def test_copies_and_pickles(layer_class):
    layer = layer_class(4, activation="elu", activation_param=0.5)
    if layer_class is InPlaceABNSync:
        layer.group = object()
    twin = copy.deepcopy(layer)
    assert getattr(twin, "group", None) is None
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(layer.eval()(x), twin.eval()(x))
    buffer = io.BytesIO()
    torch.save(twin, buffer)
    assert "elu(0.5)" in repr(twin)


def test_wrong_construction():
    for layer_class, options, words in (
        (InPlaceABN, {"activation": "relu"}, "InPlaceABN: relu cannot be inverted, choose leaky_relu, elu"),
        (InPlaceABNSync, {"activation_param": 0.0}, "InPlaceABNSync: leaky_relu can only be inverted with a positive"),
        (InPlaceABN, {"activation": "elu", "activation_param": -1}, "elu can only be inverted"),
        (ActivatedIdentity, {"activation": "swish"}, "ActivatedIdentity: unknown activation"),
        (ActivatedGroupNorm, {"num_groups": 3, "activation": "swish"}, "ActivatedGroupNorm: unknown activation"),
    ):
        with pytest.raises(ValueError, match=words):
            layer_class(3, **options)
    ABN(3, activation_param=0.0)(torch.randn(2, 3))


def test_which_scales_get_their_gradient_through_the_kernel():
    """Those that are trained, of a layer whose kernel can be replaced and whose bias, if any, cancels."""
    norm, plain, biased = InPlaceABN(4), nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 4, 1)

    def deferred(norm, layer):
        return norm.convolve(layer, torch.randn(2, 3, 5, 5))[1] is not None

    assert [deferred(norm, layer) for layer in (plain, biased)] == [True, True]
    assert [deferred(norm.eval(), layer) for layer in (plain, biased)] == [True, False]
    with torch.no_grad():
        assert not deferred(norm, plain)
    assert not deferred(InPlaceABN(4).requires_grad_(False), plain)
    assert not deferred(InPlaceABN(4, affine=False), plain)
    assert not deferred(norm, nn.Identity())


def test_which_layers_are_computed_in_parts():
    sizes, norms = ((1,), (3,), (1, 2), (1, 1, 1)), (InPlaceABN(3), InPlaceABN(3, affine=False), ABN(3))
    assert [is_pointwise(nn.Conv2d(3, 3, *of)) for of in sizes] == [True, False, False, False]
    assert is_pointwise(nn.Conv2d(3, 3, 1, 2), strided=True)
    assert [is_trained_in_half(torch.zeros(2, 3).half(), norm) for norm in norms] == [True, False, False]
    assert not torch.no_grad()(is_trained_in_half)(torch.zeros(2, 3).half(), norms[0])


@pytest.mark.parametrize(("ranks", "shared"), [(1, None), (2, "all"), (-1, None)])
def test_a_group_of_one_rank_shares_nothing(monkeypatch, ranks, shared):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: ranks)
    assert synchronised_over("all") == shared


@pytest.mark.parametrize("layer_class", [InPlaceABN, InPlaceABNSync])
@pytest.mark.parametrize("spoiler", [nn.ReLU(inplace=True), nn.Sequential(nn.Identity(), nn.SiLU(inplace=True))])
def test_output_changed_in_place(layer_class, spoiler):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), layer_class(4), spoiler, nn.Conv2d(4, 2, 1))
    y = net(torch.randn(2, 3, 8, 8))
    with pytest.raises(
        RuntimeError, match=r"InPlaceABN: its output.* was changed in place .*nn.ReLU\(inplace=False\) instead of True"
    ):
        y.sum().backward()
    with torch.no_grad():  # where nothing is rebuilt, nothing is spoilt
        assert net(torch.randn(2, 3, 8, 8)).isfinite().all()


def test_sum_and_residual_changed_in_place():
    x, residual = torch.randn(2, 2, 3, 8, 8).requires_grad_().unbind()
    y, z = InPlaceABN(3)(x), InPlaceABN(3).add(x, other := residual * 1, "leaky_relu", 0.01)
    y += x
    other.zero_()
    for result, words in (
        (y, r"`y = y \+ x` instead of `y \+= x`"),
        (z, r"InPlaceABN: its output, or what it was computed with \(residual, weight, bias\)"),
    ):
        with pytest.raises(RuntimeError, match=words):
            result.sum().backward()
