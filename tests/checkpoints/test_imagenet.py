"""Files of networks trained on ImageNet as weights of a body: the published layout, wrong networks, old releases."""

import types

import pytest
import torch
from support.narrow_backbones import NARROW, build_narrow, narrow_networks

from seamseg.checkpoints import imagenet
from seamseg.checkpoints.imagenet import network_of, published_name
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained
from seamseg.models.backbones import BACKBONES, FPN, FPNBody, build_backbone
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
    assert report.skipped == []
    assert report.loaded == len(wanted)
    state = net.body.backbone.state_dict()
    assert all(torch.equal(state[key], value) for key, value in wanted.items())
    with narrow_networks():
        assert load_pretrained(with_body(name), f"body:{path}").loaded == len(wanted)
        if name == "wider_resnet16":
            # the two forms share their weights
            assert load_body_weights(with_body("wider_resnet16_a2"), str(path)).loaded == len(wanted)


def test_values_that_are_not_finite(tmp_path):
    path = tmp_path / "net.pth.tar"
    with narrow_networks():
        weight = published(path, "resnet50")["mod1.conv1.weight"]
        content = torch.load(path)
        content["state_dict"]["module.mod1.conv1.weight"] = torch.full_like(weight, torch.nan)
        torch.save(content, path)
        for load, words in ((load_body_weights, str(path)), (load_pretrained, f"body:{path}")):
            with pytest.raises(InputError, match=r"net.pth.tar: body.backbone.mod1.conv1.weight holds values that are"):
                load(with_body("resnet50"), words)


@pytest.mark.parametrize(
    ("stored", "options", "body", "message"),
    [
        ("resnext50", {}, "resnet50", "holds a resnext50, the network is a resnet50"),
        ("densenet121", {}, "resnext50", "holds a densenet121, the network is a resnext50"),
        ("resnext50", {"input_3x3": True}, "resnext50", "begins with three 3x3 convolutions: set input_3x3 to true"),
    ],
)
def test_weights_of_another_network_are_refused(stored, options, body, message, tmp_path):
    with narrow_networks():
        published(tmp_path / "net", stored, **options)
        with pytest.raises(InputError, match=message) as caught:
            load_body_weights(with_body(body), str(tmp_path / "net"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [n for n in BACKBONES if n.endswith(("18", "34", "50", "16", "38", "121"))])
def test_a_network_is_known_by_its_keys(name):
    with torch.device("meta"):
        assert network_of(build_backbone(name, InPlaceABN).state_dict()) == name
    assert network_of(["conv1.weight", "layer1.0.conv1.weight"]) is None


def test_published_files_are_known_by_checksum(tmp_path, monkeypatch):
    path = tmp_path / "net.pth.tar"
    with narrow_networks():
        published(path, "resnext50")
        assert published_name(path) is None
        digest = imagenet.hashlib.md5(path.read_bytes()).hexdigest()
        monkeypatch.setitem(imagenet.PUBLISHED, digest, "ResNeXt50 iABN")
        report = load_body_weights(with_body("resnext50"), str(path))
        assert str(report).endswith("tensors of ResNeXt50 iABN")
        with pytest.raises(InputError, match=r"net.pth.tar \(ResNeXt50 iABN\): holds a resnext50"):
            load_body_weights(with_body("resnet50"), str(path))
        monkeypatch.setattr(imagenet, "_RELEASE_0_0_1", (digest[:8],))
        with pytest.raises(InputError, match=r"only compatible with release 0\.0\.1"):
            load_body_weights(with_body("resnext50"), str(path))
