"""Parameter groups, the state that is restored from a snapshot, and learning-rate schedules."""

import copy
import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from support.golden_files import array
from torch import nn

from seamseg.config import config_from_string, default_config
from seamseg.config.sections import Scheduler
from seamseg.models.backbones.base import Backbone
from seamseg.models.build import build_network
from seamseg.ops.norm import ABN, ActivatedGroupNorm, InPlaceABN
from seamseg.training.optim.optimizer import build_optimizer, load_optimizer_state, step_unless
from seamseg.training.optim.schedule import LRSchedule, step_note
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
        # on the meta device there is no fused step
        assert [group[key] for key in ("lr", "momentum", "nesterov", "fused")] == [0.01, 0.9, True, False]


def test_frozen_norm_layers_do_not_learn_and_decay_is_optional():
    net = small_net()
    net[0].weight.requires_grad_(False)
    net.append(net[1])
    norm, other = build_optimizer(net, options(bn_frozen=True, weight_decay_norm=True)).param_groups
    assert (len(norm["params"]), len(other["params"])) == (6, 2)
    assert norm["lr"] == 0.0
    assert other["lr"] == 0.01
    assert norm["weight_decay"] == other["weight_decay"] == 1e-4
    optimizer = build_optimizer(small_net(), options(bn_frozen=False, weight_decay_norm=False, momentum=0.0))
    norm, _ = optimizer.param_groups
    assert (norm["lr"], norm["weight_decay"], norm["nesterov"]) == (0.01, 0.0, False)
    assert not any(optimizer.state.values()), "SGD without momentum has no state"
    adamw = build_optimizer(small_net(), options(type="adamw", momentum=0.8, beta2=0.95, bn_frozen=True))
    assert isinstance(adamw, torch.optim.AdamW)
    assert [(g["lr"], g["weight_decay"], g["betas"], g["fused"]) for g in adamw.param_groups] == [
        (0.0, 1e-4, (0.8, 0.95), True),
        (0.01, 1e-4, (0.8, 0.95), True),
    ]


def trained(config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), ABN(4), nn.Linear(4, 2))
    optimizer = build_optimizer(net, config)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(5, 3) * torch.arange(5)[:, None]).square().sum().backward()
        optimizer.step()
    return net, optimizer


class Layered(Backbone):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(2, 3), ABN(3), nn.Linear(3, 4, bias=False)

    def layer_ids(self):
        return {name: 2 * name.startswith("second") for name, _ in self.named_parameters()}

    def undecayed(self):
        return {"first.bias"}


def test_rates_and_decay_of_the_layers_of_a_body():
    net = nn.ModuleDict({"body": Layered(), "head": nn.Linear(4, 5)})
    # as a network states it
    object.__setattr__(net, "backbone", net["body"])
    given = {"lr": 1.0, "weight_decay": 0.25, "weight_decay_norm": False, "body_lr_factor": 0.5, "bn_frozen": False}
    for decay, first, second in ((0.5, 0.0625, 0.25), (1.0, 0.5, 0.5)):
        groups = build_optimizer(net, options(**given, layer_decay=decay)).param_groups
        found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
        wanted = {
            "body.first.weight": (first, 0.25), "body.first.bias": (first, 0.0), "body.norm.weight": (first, 0.0),
            "body.norm.bias": (first, 0.0), "body.second.weight": (second, 0.25), "head.weight": (1.0, 0.25),
            "head.bias": (1.0, 0.25),
        }  # fmt: skip
        assert {name: found[id(p)] for name, p in net.named_parameters()} == wanted
        # of what has the rate of the configuration
        assert groups[0]["params"] == []
        assert groups[-1]["params"] == list(net["head"].parameters())


@pytest.mark.parametrize("name", ["momentum", "beta2"])
def test_adamw_needs_betas_below_one(name):
    with pytest.raises(InputError, match=rf"\[optimizer\] {name} = 1: with type = adamw it must be below 1"):
        build_optimizer(small_net(), options(type="adamw", **{name: 1}))


OTHERS = (
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.Adagrad,
)


@pytest.mark.parametrize("make", OTHERS, ids=lambda make: str(getattr(make, "keywords", None) or make.__name__))
def test_state_that_begins_with_the_first_step_is_restored(make):
    states = []
    for interrupted in (False, True):
        torch.manual_seed(0)
        net = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        optimizer = make(net.parameters())
        for step in range(4):
            if interrupted and step == 2:
                saved = copy.deepcopy(optimizer.state_dict())
                for entry in saved["state"].values():
                    entry.update({key: value.contiguous() for key, value in entry.items() if hasattr(value, "shape")})
                optimizer = make(net.parameters(), **({} if isinstance(make, partial) else {"weight_decay": 0.0}))
                unnamed = (torch.optim.SGD, torch.optim.Adam)
                kind = None if isinstance(optimizer, unnamed) else type(optimizer).__name__
                load_optimizer_state(optimizer, saved, "file", kind)
                assert isinstance(make, partial) or optimizer.param_groups[0]["weight_decay"] == 0.0
                optimizer.param_groups[0]["weight_decay"] = saved["param_groups"][0]["weight_decay"]
            optimizer.zero_grad()
            net(torch.full((1, 3, 5, 5), step + 1.0)).square().sum().backward()
            step_unless(optimizer, torch.tensor(False))
        states.append((net.state_dict(), optimizer.state_dict()))
        for parameter in net.parameters():
            for value in optimizer.state[parameter].values():
                assert (
                    not torch.is_tensor(value) or value.shape != parameter.shape or value.stride() == parameter.stride()
                )
    (weights, state), (again, state_again) = states
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert state["param_groups"] == state_again["param_groups"]
    assert len(state["state"]) == len(state_again["state"]) == 2
    for index, entry in state["state"].items():
        for key, value in entry.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(state_again["state"][index][key])), key


@pytest.mark.parametrize(("saved", "used"), [("sgd", "adamw"), ("adamw", "sgd")])
def test_state_of_another_type_of_optimizer_is_refused(saved, used):
    state = trained(options(type=saved))[1].state_dict()
    fresh = build_optimizer(trained(options())[0], options(type=used))
    message = rf"old\.tar: its optimizer is {saved}, this training uses {used}; change optimizer\.type"
    with pytest.raises(InputError, match=message):
        load_optimizer_state(fresh, state, "old.tar")


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
    for width in (3, 5):
        other = build_optimizer(nn.Sequential(nn.Linear(3, width), ABN(width), nn.Linear(width, 2)), options())
        with pytest.raises(InputError, match=rf"has a \(4,\) tensor where this training has \({width},\)"):
            load_optimizer_state(other, optimizer.state_dict(), "old.tar")


# --- learning-rate schedules against stored values of the original

SECTION = {spec.name for spec in fields(Scheduler)}
CONFIGS = json.loads(bytes(array("ops", "scheduler/_configs")))


def schedule(base_lrs, epoch_length, **options):
    given = {key: value for key, value in {"burn_in_steps": 0, **options}.items() if key in SECTION}
    text = "[scheduler]\n" + "".join(f"{key} = {value}\n" for key, value in given.items())
    config = config_from_string(text)
    curve, keys = config.component("scheduler")
    return LRSchedule(curve.make, keys, config.scheduler, base_lrs, epoch_length)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_golden_schedules(name):
    config, case = CONFIGS[name]["config"], CONFIGS[name]
    found = schedule(case["base_lrs"], case["epoch_length"], **config)
    rates = np.array([found.get_lr(t, t) for t in range(1, 1001)])
    np.testing.assert_allclose(rates, array("ops", f"scheduler_get_lr/{name}"), rtol=0, atol=1e-16)


MULTISTEP = """
[scheduler]
type = multistep
update_mode = {mode}
epochs = 130
params = {{"gamma": 0.1, "milestones": [36000, 44000]}}
burn_in_steps = 200
[optimizer]
"""


@pytest.mark.parametrize(
    ("keys", "mode", "images", "expected"),
    [
        (
            "",
            "batch",
            1,
            "a step has 1 image, learning rate and schedule are for 8, the rate would drop after epoch 12 of 130: "
            "set optimizer.accumulate=8, or by the linear rule optimizer.step_images=1 optimizer.lr=0.00125 "
            "scheduler.burn_in_steps=1600 "
            """scheduler.params='{"gamma": 0.1, "milestones": [288000, 352000]}'""",
        ),
        ("accumulate = 2", "epoch", 4, "set optimizer.accumulate=4, or by the linear rule optimizer.step_images=4 "),
        ("step_images = 1", "epoch", 1000, "optimizer.lr=10 scheduler.burn_in_steps=1"),
        ("", "batch", 16, "for 8, the rate would not drop in its epochs, which are 130: set by the linear rule"),
        ("", "batch", 8, None),
        ("lr = 0.1", "batch", 1, None),
        ("step_images = 1", "batch", 1, None),
    ],
)
def test_images_a_step_that_the_rate_is_not_for(keys, mode, images, expected):
    # the epochs of Cityscapes, 2975 images
    note = step_note(config_from_string(MULTISTEP.format(mode=mode) + keys), images, 2975 // images)
    assert note == expected or (expected in note and (mode == "epoch") == ("params" not in note))


def test_epochs_count_with_update_mode_epoch_and_burn_in_counts_steps():
    params = {"step_size": 1, "gamma": 0.5}
    found = schedule([1.0], 10, type="step", params=params, epochs=3, update_mode="epoch", burn_in_steps=4)
    assert [found.factor(*at) for at in ((4, 0), (5, 0), (15, 1), (30, 2))] == [1.0, 1.0, 0.5, 0.25]
    beyond = schedule([1.0], 10, type="poly", params={"gamma": 0.9}, epochs=1, update_mode="batch")
    assert beyond.get_lr(11, 1) == [0.0]


@pytest.mark.parametrize(("mode", "tried"), [("batch", [0, 1, 7, 15, 22, 30]), ("epoch", [0, 1, 2])])
def test_a_curve_is_tried_before_the_training(mode, tried):
    seen, section = [], replace(default_config().scheduler, epochs=3, update_mode=mode)
    LRSchedule(lambda t, total, keys: seen.append(t) or 1.0, None, section, [1.0], 10)
    assert sorted(seen) == tried
    for factor in (-0.5, np.inf, np.nan):
        with pytest.raises(InputError, match=f"the factor of the learning rate at 0 is {factor}"):
            LRSchedule(lambda *_, factor=factor: factor, None, section, [1.0], 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "poly", "params": {}}, "a poly schedule needs gamma"),
        ({"type": "multistep", "params": {"gamma": 1}}, "needs milestones"),
        ({"type": "step", "params": {"gamma": 1, "step_size": 0}}, "step_size must be positive"),
    ],
)
def test_errors_of_schedules(options, message):
    with pytest.raises(InputError, match=message):
        schedule([1.0], 1, **options)
