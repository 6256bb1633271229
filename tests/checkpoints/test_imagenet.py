"""Weights of networks trained on ImageNet for a body: files of the published layout, and those of torchvision."""

import hashlib
import json
import re
import sys
import types
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.narrow_backbones import NARROW, build_narrow, narrow_networks
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from seamseg.checkpoints import imagenet, pretrained
from seamseg.checkpoints.imagenet import ARCHITECTURES, body_key, convert_backbone, rename
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained
from seamseg.cli.main import main
from seamseg.models import FPN, FPNBody, build_backbone
from seamseg.models.backbones.resnet import RESNETS, Architecture, ResNet
from seamseg.ops.norm import InPlaceABN
from seamseg.utils.errors import InputError


def with_body(name, **options):
    backbone = build_narrow(name, InPlaceABN, **options)
    inputs = ["mod2", "mod5"]
    pyramid = FPN([backbone.out_channels[i] for i in inputs], 4, 0, InPlaceABN)
    return types.SimpleNamespace(body=FPNBody(backbone, pyramid, inputs))


def published(path, name, **options):
    """A file in the layout of the original: a prefix, a classifier, no counters."""
    torch.manual_seed(1)
    state = build_narrow(name, InPlaceABN, classes=10, **options).state_dict()
    state = {f"module.{k}": v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save({"epoch": 90, "arch": name, "state_dict": state, "best_prec1": 78.1, "optimizer": {}}, path)
    return {k.removeprefix("module."): v for k, v in state.items() if "classifier" not in k}


@pytest.mark.parametrize("name", NARROW)
def test_a_classifier_gives_the_weights_of_a_body(name, tmp_path):
    path = tmp_path / "net.pth.tar"
    with narrow_networks():
        wanted = published(path, name)
        net = with_body(name)
        report = load_body_weights(net, str(path))
    assert (report.loaded, report.skipped) == (len(wanted), [])
    state = net.body.backbone.state_dict()
    assert all(torch.equal(state[key], value) for key, value in wanted.items())
    with narrow_networks():
        assert load_pretrained(with_body(name), f"body:{path}").loaded == len(wanted)
        if name == "wider_resnet16":
            # the two forms share their weights
            assert load_body_weights(with_body("wider_resnet16_a2"), str(path)).loaded == len(wanted)


@pytest.mark.parametrize(
    ("stored", "options", "body"),
    [
        ("resnext50", {}, "resnet50"),
        ("densenet121", {}, "resnext50"),
        ("resnext50", {"input_3x3": True}, "resnext50"),
    ],
)
def test_weights_of_another_network_are_refused(stored, options, body, tmp_path):
    with narrow_networks():
        published(tmp_path / "net", stored, **options)
        with pytest.raises(InputError, match=f"^.*: does not fit {body}; is it another network, .*, skipped") as caught:
            load_body_weights(with_body(body), str(tmp_path / "net"))
    assert "\n" not in str(caught.value)


def test_files_of_the_first_release_are_refused_by_checksum(tmp_path, monkeypatch):
    path = tmp_path / "net.pth.tar"
    with narrow_networks():
        published(path, "resnext50")
        monkeypatch.setattr(imagenet, "_RELEASE_0_0_1", (hashlib.md5(path.read_bytes()).hexdigest()[:8],))
        with pytest.raises(InputError, match=r"only compatible with release 0\.0\.1"):
            load_body_weights(with_body("resnext50"), str(path))


DATA = Path(__file__).parents[1] / "golden"
MAP = json.loads((DATA / "convert_resnet_map.json").read_text())
BODIES = json.loads((DATA / "keys_resnet_bodies.json").read_text())


def torchvision_state(net):
    shapes = {key: shape for key, shape, _ in BODIES[net]}
    generator = torch.Generator().manual_seed(0)
    state = {theirs: torch.randn(shapes[ours], generator=generator) for theirs, ours in MAP[net]}
    state["fc.weight"], state["fc.bias"] = torch.zeros(1000, 512), torch.zeros(1000)
    state["bn1.num_batches_tracked"] = torch.tensor(7)
    return state


@pytest.fixture(scope="module")
def resnet18():
    return torchvision_state("resnet18")


@pytest.mark.parametrize("net", MAP)
def test_names_are_those_of_the_original(net):
    assert set(ARCHITECTURES) == set(MAP)
    assert {theirs: body_key(theirs) for theirs, _ in MAP[net]} == dict(MAP[net])
    assert body_key("fc.weight") is body_key("layer5.0.conv1.weight") is body_key("conv10.weight") is None


@pytest.mark.parametrize("bottleneck", [False, True])
def test_the_function_is_that_of_torchvision(bottleneck, tmp_path):
    """Also where the scale of a norm is negative; with our activation in the place of ReLU."""
    torch.manual_seed(0)
    theirs = TorchvisionResNet(Bottleneck if bottleneck else BasicBlock, [1, 2, 1, 1])
    for norm in [module for module in theirs.modules() if isinstance(module, nn.BatchNorm2d)]:
        norm.weight.data.uniform_(0.1, 1).mul_(torch.tensor([1, -1]).repeat(norm.num_features // 2))
        norm.bias.data.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    torch.save({"model": {f"backbone.{k}": v for k, v in theirs.state_dict().items()}}, tmp_path / "in.pth")
    body = ResNet(Architecture((1, 2, 1, 1), bottleneck), InPlaceABN).eval()
    report = load_pretrained(nn.ModuleDict({"body": body}), f"body:{tmp_path / 'in.pth'}")
    assert (report.skipped, report.loaded) == ([], len([k for k in body.state_dict() if "num_batches" not in k]))
    for name, _ in list(theirs.named_modules()):
        if name.endswith("relu"):
            theirs.set_submodule(name, nn.LeakyReLU(0.01))
    theirs.fc = nn.Identity()
    with torch.no_grad():
        images = torch.randn(2, 3, 64, 64)
        expected = theirs.eval()(images)
        found = body(images)["mod5"].mean((2, 3))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(("wrapper", "prefix"), [("", ""), ("state_dict", "module.backbone."), ("model", "encoder.")])
def test_conversion_fills_a_body(tmp_path, resnet18, wrapper, prefix):
    content = {prefix + key: value for key, value in resnet18.items()}
    torch.save({wrapper: content, "epoch": 3} if wrapper else content, tmp_path / "in.pth")
    assert convert_backbone("resnet18", tmp_path / "out.pth", tmp_path / "in.pth") == (100, [])
    state = torch.load(tmp_path / "out.pth", weights_only=True)
    body = ResNet(RESNETS["resnet18"], InPlaceABN)
    missing, unexpected = body.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    for theirs, ours in MAP["resnet18"]:
        assert torch.equal(state[ours].abs(), resnet18[theirs].abs())
        assert not re.search(r"bn\d?\.weight", ours) or state[ours].min() >= 0


def test_a_training_downloads_from_torchvision(resnet18, monkeypatch):
    monkeypatch.setattr(pretrained, "download", lambda name, advice: {"resnet18": resnet18}[name])
    body = build_backbone("resnet18", InPlaceABN)
    net = nn.ModuleDict({"body": body})
    assert load_pretrained(net, "body:torchvision").skipped == []
    wanted, _ = rename("resnet18", resnet18)
    assert all(torch.equal(body.state_dict()[key], value) for key, value in wanted.items())
    body.name = "resnext101"
    with pytest.raises(InputError, match=r"torchvision: has weights for resnet18, .*, this part is not one of them"):
        load_body_weights(net, "torchvision")


def test_partial_weights_convert_what_they_hold(resnet18, tmp_path, capsys):
    partial = {key: value for key, value in resnet18.items() if not key.startswith("layer4.1.conv")}
    torch.save(partial, tmp_path / "in.pth")
    assert main(["convert-backbone", "resnet18", str(tmp_path / "out.pth"), "--weights", str(tmp_path / "in.pth")]) == 0
    output = capsys.readouterr().out
    assert "98 tensors of resnet18" in output
    assert "lack 2 tensors of this network: mod5.block2.convs.conv1.weight" in output
    assert main(["convert-backbone", "resnet18", str(tmp_path / "out.pth"), "--weights", str(tmp_path / "in.pth")]) == 2
    said = f"seamseg convert-backbone: {tmp_path / 'out.pth'}: exists; use --force to overwrite it\n"
    assert capsys.readouterr().err == said


def test_weights_that_do_not_belong_to_the_network(resnet18, tmp_path):
    torch.save(torch.zeros(3), tmp_path / "in.pth")
    with pytest.raises(InputError, match=r"in\.pth: not a state dict"):
        convert_backbone("resnet18", tmp_path / "out.pth", tmp_path / "in.pth")
    with pytest.raises(InputError, match=r"w\.pth: holds no tensor with the names of a torchvision ResNet$"):
        rename("resnet18", {"a": torch.zeros(1)}, "w.pth")
    with pytest.raises(InputError, match=r"w\.pth: .* does not belong to a resnet50: is it another network\?"):
        rename("resnet50", resnet18, "w.pth")
    converted = rename("resnet18", resnet18)[0]
    for prefix in ("", "backbone."):
        with pytest.raises(InputError, match="it is converted already"):
            rename("resnet18", {prefix + key: value for key, value in converted.items()})
    with pytest.raises(InputError, match=r"holds several networks: 'k\.', 'q\.'"):
        rename("resnet18", {f"{prefix}.{key}": value for prefix in "qk" for key, value in resnet18.items()})


@pytest.mark.parametrize("error", [OSError("connection\nrefused"), None])
def test_without_network_or_torchvision(error, monkeypatch, capsys, tmp_path):
    weights = Mock()
    weights.IMAGENET1K_V1.get_state_dict.side_effect = error
    models = Mock(get_model_weights=lambda net: weights)
    monkeypatch.setitem(sys.modules, "torchvision", Mock(models=models) if error else None)
    assert main(["convert-backbone", "resnet18", str(tmp_path / "out.pth")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    expected = "cannot download resnet18 (connection refused)" if error else "torchvision cannot be imported"
    assert expected in line
    assert "; give a file with --weights" in line
