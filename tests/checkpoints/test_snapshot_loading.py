"""Loading of snapshots into networks that they fit, or do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_snapshots import Net, assert_same, snapshot_of
from torch import nn

from seamseg.checkpoints.snapshot import load_into, load_module
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import ABN
from seamseg.utils.errors import InputError


def test_missing_part(tmp_path: Path) -> None:
    snapshot = snapshot_of(Net())
    del snapshot.state_dict["sem_head"]
    with pytest.raises(InputError, match=r"^m\.tar: has no 'sem_head': it is a snapshot of another kind of network$"):
        load_into(Net(), snapshot, name="m.tar")
    report = load_into(Net(), snapshot, strict=False)
    assert report.skipped == ["sem_head (not in the file)"]


def test_a_network_without_the_part_takes_the_rest() -> None:
    assert load_into(Net(semantic=False), snapshot_of(Net())).skipped == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("strict", [True, False])
def test_values_that_are_not_finite(value: float, strict: bool) -> None:
    """A network with such weights finds nothing, without a word, or fails anywhere."""
    net = Net()
    with torch.no_grad():
        net.roi_head.weight[1, 2] = value
    with pytest.raises(InputError, match=r"^m\.tar: roi_head\.weight holds values that are not finite"):
        load_into(Net(), snapshot_of(net), strict, name="m.tar")
    large = Net()
    with torch.no_grad():
        large.roi_head.weight.fill_(3e38)
    assert load_into(Net(), snapshot_of(large), strict).skipped == [], "their sum overflows"


def test_another_class_count() -> None:
    snapshot, net = snapshot_of(Net(classes=5)), Net(classes=3)
    with pytest.raises(InputError) as error:
        load_into(net, snapshot, name="m.tar")
    assert str(error.value).startswith("m.tar: does not fit this network: 4 tensors differ, first roi_head.weight (5x4")
    assert "5x4 in the file, 3x4 in the network" in str(error.value)


def test_pre_training_skips_and_lists_tensors_that_do_not_fit() -> None:
    source, net = Net(classes=5), Net(classes=3)
    before = net.roi_head.weight.clone()
    report = load_into(net, snapshot_of(source), strict=False)
    assert [line.partition(" ")[0] for line in report.skipped] == [
        *("roi_head.weight", "roi_head.bias", "sem_head.weight", "sem_head.bias")
    ]
    assert "skipped 4: roi_head.weight (5x4 in the file, 3x4 in the network), roi_head.bias (5 in" in str(report)
    assert torch.equal(net.roi_head.weight, before)
    assert_same(source.body, net.body)


def test_missing_surplus_and_odd_values() -> None:
    net = Net()
    state: dict[str, Any] = dict(net.body.state_dict())
    del state["conv.bias"]
    state["conv2.weight"] = torch.zeros(1)
    state["conv.weight"] = 3
    report = load_module(net.body, state, "body")
    assert sorted(report.skipped) == [
        "body.conv.bias (not in the file)",
        "body.conv.weight (not a tensor)",
        "body.conv2.weight (not in the network)",
    ]
    assert report.loaded == len(state) - 2


def test_another_depth_is_refused() -> None:
    """Every tensor of a ResNet-50 has one of the same name and shape in a ResNet-101."""
    with torch.device("meta"):
        shallow, deep = ResNet(RESNETS["resnet50"], ABN), ResNet(RESNETS["resnet101"], ABN)
    report = load_module(shallow, deep.state_dict(), "body")
    assert report.skipped
    assert all(line.endswith("(not in the network)") for line in report.skipped)


def test_a_bare_backbone_fits_a_body_with_a_pyramid() -> None:
    body = nn.ModuleDict({"backbone": nn.Linear(2, 2), "fpn": nn.Linear(2, 2)})
    state = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    report = load_module(body, state, "body")
    assert report.loaded == 2
    assert torch.equal(body["backbone"].state_dict()["bias"], torch.ones(2))


def test_half_precision_weights_load_into_a_float_network() -> None:
    net, source = Net(), Net().half()
    load_into(net, snapshot_of(source))
    assert net.roi_head.weight.dtype == torch.float32
    assert torch.equal(net.roi_head.weight, source.roi_head.weight.float())
