"""Parameter groups, and the state that is restored from a snapshot."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from seamseg.config import default_config
from seamseg.models.build import build_network
from seamseg.ops.norm import ABN, ActivatedGroupNorm, InPlaceABN
from seamseg.training.optim.optimizer import build_optimizer, load_optimizer_state, set_learning_rates, split_parameters
from seamseg.utils.errors import InputError

# the groups of the original for its two published configurations: (tensors, numbers, weight decay) of norm and others
GOLDEN_GROUPS = {
    "cityscapes_r50": (11, 8, [(134, 66048, 0.0), (87, 51142995, 1e-4)]),
    "vistas_r50": (28, 37, [(136, 66560, 0.0), (88, 51915065, 1e-4)]),
}


def options(**values):
    config = default_config()
    body = {k: values.pop(k) for k in list(values) if hasattr(config.body, k)}
    return replace(config, body=replace(config.body, **body), optimizer=replace(config.optimizer, **values))


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), InPlaceABN(4), nn.Linear(4, 2, bias=False), ActivatedGroupNorm(4, 2), ABN(4)
    )


@pytest.mark.parametrize("name", sorted(GOLDEN_GROUPS))
def test_groups_of_the_published_configurations(name, published_config):
    num_stuff, num_thing, expected = GOLDEN_GROUPS[name]
    config = published_config(name)
    with torch.device("meta"):
        net = build_network(config, num_stuff, num_thing)
    optimizer = build_optimizer(net, config)
    assert [
        (len(g["params"]), sum(p.numel() for p in g["params"]), g["weight_decay"]) for g in optimizer.param_groups
    ] == expected
    for group in optimizer.param_groups:
        assert (group["lr"], group["momentum"], group["nesterov"]) == (0.01, 0.9, True)


def test_frozen_norm_layers_do_not_learn_and_decay_is_optional():
    norm, other = build_optimizer(small_net(), options(bn_frozen=True, weight_decay_norm=True)).param_groups
    assert norm["lr"] == 0.0
    assert other["lr"] == 0.01
    assert norm["weight_decay"] == other["weight_decay"] == 1e-4
    norm, _ = build_optimizer(small_net(), options(bn_frozen=False, weight_decay_norm=False)).param_groups
    assert norm["lr"] == 0.01
    assert norm["weight_decay"] == 0.0


def test_parameters_without_gradient_and_shared_ones_appear_at_most_once():
    net = small_net()
    net[0].weight.requires_grad_(False)
    net.append(net[1])
    norm, other = split_parameters(net)
    assert len(norm) == 6
    assert len(other) == 2


def trained(config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), ABN(4), nn.Linear(4, 2))
    optimizer = build_optimizer(net, config)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(5, 3) * torch.arange(5)[:, None]).square().sum().backward()
        optimizer.step()
    return net, optimizer


def test_momentum_is_restored_and_rates_are_not():
    net, optimizer = trained(options())
    set_learning_rates(optimizer, [0.5, 0.25])
    again, _ = trained(options())
    fresh = build_optimizer(again, options())
    load_optimizer_state(fresh, optimizer.state_dict(), "file")
    assert [g["lr"] for g in fresh.param_groups] == [0.0, 0.01]
    for a, b in zip(net.parameters(), again.parameters()):
        torch.testing.assert_close(optimizer.state[a]["momentum_buffer"], fresh.state[b]["momentum_buffer"])


def test_adamw_has_the_groups_of_sgd():
    adamw = build_optimizer(small_net(), options(type="adamw", momentum=0.8, beta2=0.95, bn_frozen=True))
    sgd = build_optimizer(small_net(), options(bn_frozen=True))
    assert isinstance(adamw, torch.optim.AdamW)
    for one, two in zip(adamw.param_groups, sgd.param_groups, strict=True):
        assert [p.shape for p in one["params"]] == [p.shape for p in two["params"]]
        assert (one["lr"], one["weight_decay"]) == (two["lr"], two["weight_decay"])
        assert one["betas"] == (0.8, 0.95)
        assert one["fused"]
        assert two["fused"]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_restored_state_continues_bit_exactly(kind):
    net, optimizer = trained(options(type=kind))
    again, _ = trained(options(type=kind))
    fresh = build_optimizer(again, options(type=kind))
    load_optimizer_state(fresh, optimizer.state_dict(), "file")
    for module, its in ((net, optimizer), (again, fresh)):
        its.zero_grad()
        module[0](torch.ones(5, 3)).sum().backward()
        its.step()
    for a, b in zip(net.parameters(), again.parameters()):
        assert torch.equal(a, b)
        assert optimizer.state[a].keys() == fresh.state[b].keys()
        assert all(torch.equal(optimizer.state[a][key], fresh.state[b][key]) for key in optimizer.state[a])
    if kind == "adamw":
        assert [int(fresh.state[p]["step"]) for p in again.parameters()] == [3, 3, 2, 2, 2, 2]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_state_of_the_other_optimizer_is_refused(kind):
    other = {"sgd": "adamw", "adamw": "sgd"}[kind]
    _, optimizer = trained(options(type=other))
    fresh = build_optimizer(trained(options())[0], options(type=kind))
    message = rf"old\.tar: its optimizer is {other}, this training uses {kind}; change optimizer\.type"
    with pytest.raises(InputError, match=message):
        load_optimizer_state(fresh, optimizer.state_dict(), "old.tar")


def test_damaged_state_is_refused():
    _, optimizer = trained(options())
    good = optimizer.state_dict()
    for bad in (3, {}, {**good, "state": 3}, {**good, "state": {0: 3}}, {**good, "param_groups": [3, 3]}):
        with pytest.raises(InputError, match=r"old\.tar: its optimizer state is damaged"):
            load_optimizer_state(optimizer, bad, "old.tar")


def test_state_of_other_parameters_is_refused():
    _, optimizer = trained(options())
    other = build_optimizer(nn.Sequential(nn.Linear(3, 4), ABN(4)), options())
    with pytest.raises(InputError, match=r"old\.tar: its optimizer holds \[2, 4\] parameters a group.*\[2, 2\]"):
        load_optimizer_state(other, optimizer.state_dict(), "old.tar")
    other = build_optimizer(nn.Sequential(nn.Linear(3, 5), ABN(5), nn.Linear(5, 2)), options())
    with pytest.raises(InputError, match="where this training has"):
        load_optimizer_state(other, optimizer.state_dict(), "old.tar")
