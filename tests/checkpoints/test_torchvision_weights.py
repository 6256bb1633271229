"""Conversion of torchvision ResNets: against the original's map, and files that are partial or invalid."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.checkpoints.torchvision_weights import ARCHITECTURES, body_key, convert_backbone, rename
from seamseg.cli.main import main
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import InPlaceABN
from seamseg.utils.errors import InputError, SeamsegError

DATA = Path(__file__).parents[1] / "golden"
MAP = json.loads((DATA / "convert_resnet_map.json").read_text())
BODIES = json.loads((DATA / "keys_resnet_bodies.json").read_text())


def torchvision_state(net: str) -> dict[str, Tensor]:
    """Random weights under torchvision's names, classifier and counters included."""
    shapes = {key: shape for key, shape, _ in BODIES[net]}
    generator = torch.Generator().manual_seed(0)
    state = {theirs: torch.randn(shapes[ours], generator=generator) for theirs, ours in MAP[net]}
    state["fc.weight"], state["fc.bias"] = torch.zeros(1000, 512), torch.zeros(1000)
    state["bn1.num_batches_tracked"] = torch.tensor(7)
    return state


@pytest.fixture(scope="module")
def resnet18() -> dict[str, Tensor]:
    return torchvision_state("resnet18")


@pytest.mark.parametrize("net", MAP)
def test_names_are_those_of_the_original(net: str) -> None:
    assert set(ARCHITECTURES) == set(MAP)
    assert {theirs: body_key(theirs) for theirs, _ in MAP[net]} == dict(MAP[net])


@pytest.mark.parametrize("key", ["fc.weight", "fc.bias", "layer5.0.conv1.weight", "conv10.weight", "mod1.conv1.weight"])
def test_keys_outside_of_the_body(key: str) -> None:
    assert body_key(key) is None


def test_conversion_fills_a_body(tmp_path: Path, resnet18: dict[str, Tensor]) -> None:
    torch.save(resnet18, tmp_path / "in.pth")
    report = convert_backbone("resnet18", tmp_path / "out.pth", tmp_path / "in.pth")
    assert (report.converted, report.missing) == (100, [])
    state = torch.load(tmp_path / "out.pth", weights_only=True)
    body = ResNet(RESNETS["resnet18"], InPlaceABN)
    missing, unexpected = body.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    for theirs, ours in MAP["resnet18"]:
        assert torch.equal(state[ours], resnet18[theirs])
    norms = [v for k, v in resnet18.items() if k.endswith(".weight") and v.dim() == 1]
    assert report.negative == sum(int((v < 0).sum()) for v in norms) > 0


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_training_takes_the_file_as_it_is(tmp_path: Path, resnet18: dict[str, Tensor], prefix: str) -> None:
    torch.save({prefix + key: value for key, value in resnet18.items()}, tmp_path / "r18.pth")
    net = nn.ModuleDict({"body": ResNet(RESNETS["resnet18"], InPlaceABN)})
    report = load_pretrained(net, f"body:{tmp_path / 'r18.pth'}")
    wanted, missing = rename("resnet18", resnet18)
    assert (report.loaded, report.skipped, missing) == (len(wanted), [], [])
    assert all(torch.equal(net["body"].state_dict()[key], value) for key, value in wanted.items())


def test_a_training_refuses_the_file_of_another_network(tmp_path: Path, resnet18: dict[str, Tensor]) -> None:
    torch.save(torchvision_state("resnet34"), tmp_path / "r34.pth")
    net = nn.ModuleDict({"body": ResNet(RESNETS["resnet18"], InPlaceABN)})
    with pytest.raises(InputError, match=r"r34\.pth: layer1.2.conv1.weight does not belong to this body"):
        load_pretrained(net, f"body:{tmp_path / 'r34.pth'}")
    torch.save({7: torch.zeros(1), **resnet18}, tmp_path / "odd.pth")
    with pytest.raises(InputError, match=r"odd\.pth"):
        load_pretrained(net, f"body:{tmp_path / 'odd.pth'}")


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_wrapped_and_parallel_state_dicts(wrapper: str, resnet18: dict[str, Tensor], tmp_path: Path) -> None:
    wrapped = {wrapper: {f"module.{key}": value for key, value in resnet18.items()}, "epoch": 3}
    torch.save(wrapped, tmp_path / "in.pth")
    assert convert_backbone("resnet18", tmp_path / "out.pth", tmp_path / "in.pth").missing == []


def test_partial_weights_convert_what_they_hold(
    resnet18: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = {key: value for key, value in resnet18.items() if not key.startswith("layer4.1.conv")}
    torch.save(partial, tmp_path / "in.pth")
    assert main(["convert-backbone", "resnet18", str(tmp_path / "out.pth"), "--weights", str(tmp_path / "in.pth")]) == 0
    output = capsys.readouterr().out
    assert "98 tensors of resnet18" in output
    assert "lack 2 tensors" in output
    assert "mod5.block2.convs.conv1.weight" in output
    assert "negative" in output


def test_weights_that_do_not_belong_to_the_network(resnet18: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"w\.pth: .* does not belong to a resnet50: is it another network\?"):
        rename("resnet50", resnet18, "w.pth")
    with pytest.raises(InputError, match=r"layer1\.2\.conv1\.weight does not belong to a resnet18"):
        rename("resnet18", torchvision_state("resnet34"))
    with pytest.raises(InputError, match="does not belong to a resnet18"):
        rename("resnet18", {**resnet18, "conv1.weight": 3})
    with pytest.raises(InputError, match="it is converted already"):
        rename("resnet18", rename("resnet18", resnet18)[0])


@pytest.mark.parametrize("content", [[1, 2], {"a": torch.zeros(1)}, {"state_dict": [1]}, torch.zeros(3)])
def test_files_that_are_not_a_resnet(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "in.pth")
    with pytest.raises(InputError, match=r"in\.pth: (not a state dict|holds no tensor)"):
        convert_backbone("resnet18", tmp_path / "out.pth", tmp_path / "in.pth")
    assert not (tmp_path / "out.pth").exists()


def test_no_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert main(["convert-backbone", "resnet18", str(tmp_path / "out.pth")]) == 1
    output = capsys.readouterr().err
    assert "torchvision cannot be imported" in output
    assert "--weights" in output
    assert output.count("\n") == 1


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Weights:
        class IMAGENET1K_V1:
            @staticmethod
            def get_state_dict(progress: bool) -> None:
                raise OSError("connection\nrefused")

    torchvision = ModuleType("torchvision")
    torchvision.models = SimpleNamespace(get_model_weights=lambda net: Weights)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    with pytest.raises(SeamsegError, match=r"cannot download resnet18 \(connection refused\); give a file with"):
        convert_backbone("resnet18", tmp_path / "out.pth")
