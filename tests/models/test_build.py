"""From configurations to networks: every mode and task, keys of the published networks, and contradictions."""

import json

import pytest
import torch
from support.golden_files import DATA
from support.networks import ROOT, narrow_module, tiny_config

from seamseg.config import config_from_string, config_to_string, default_config, load_config
from seamseg.models.build import build_network, build_training_module
from seamseg.models.panoptic_inference import NetworkOptions
from seamseg.ops.fused import TrainedWinogradConv2d
from seamseg.ops.norm import ActivatedGroupNorm, ActivatedIdentity, InPlaceABN, InPlaceABNSync
from seamseg.utils.errors import InputError

NORMS = (InPlaceABN, InPlaceABNSync, ActivatedGroupNorm, ActivatedIdentity)


def norms_of(module):
    return {type(m) for m in module.modules() if type(m) in NORMS}


@pytest.mark.parametrize(
    ("mode", "body_norm", "head_norm", "activation"),
    [
        ("bn", InPlaceABN, InPlaceABN, "leaky_relu"),
        ("bn", InPlaceABN, InPlaceABN, "elu"),
        ("syncbn", InPlaceABNSync, InPlaceABNSync, "elu"),
        ("syncbn+bn", InPlaceABNSync, InPlaceABN, "leaky_relu"),
        ("gn", ActivatedGroupNorm, ActivatedGroupNorm, "elu"),
        ("syncbn+gn", InPlaceABNSync, ActivatedGroupNorm, "leaky_relu"),
        ("off", ActivatedIdentity, ActivatedIdentity, "elu"),
    ],
)
def test_normalization_modes(mode, body_norm, head_norm, activation):
    net = narrow_module(f"body.activation={activation}", "body.activation_slope=0.5", mode=mode).net
    assert norms_of(net.body) == norms_of(net.sem_head) == {body_norm}
    assert norms_of(net.rpn_head) == norms_of(net.roi_head) == {head_norm}
    assert all(m.activation in (activation, "identity") for m in net.modules() if type(m) in NORMS)


@pytest.mark.parametrize("winograd", ["yes", "no"])
def test_winograd_in_training_only(winograd):
    config = load_config("cityscapes_r50", overrides=[f"general.winograd={winograd}"])
    with torch.device("meta"):
        nets = build_network(config, 11, 8), build_training_module(config, 11, 8).net
    found = [sum(isinstance(layer, TrainedWinogradConv2d) for layer in net.modules()) for net in nets]
    assert found == [0, 30 if winograd == "yes" else 0]


def test_wrong_groups_and_classes():
    with pytest.raises(InputError, match="0 thing classes"):
        build_network(tiny_config(), 3, 0)
    for mode in ("gn", "syncbn+gn"):
        config = tiny_config(mode=mode, overrides=("body.gn_groups=7",))
        with pytest.raises(InputError, match=r"\[body\] gn_groups: \d+ channels of a layer do not divide into 7"):
            build_training_module(config, 2, 3)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.ini")), ids=lambda p: p.name)
def test_shipped_configurations_build(path):
    config = load_config(path)
    with torch.device("meta"):
        net = build_network(config, 3, 4)
    classes = {"panoptic": lambda: net.sem_head.conv_sem.out_channels, "semantic": lambda: net.cls.out_channels}
    if config.general.kind in classes:
        assert classes[config.general.kind]() == 3 + 4
    if config.general.kind == "semantic":
        return
    assert net.roi_head.roi_cls.out_features == 4 + 1
    assert len(net.options.anchors.strides) == config.rpn.fpn_levels


OTHER = {"mod2": 4, "mod3": 8, "mod4": 16, "mod9": 32}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[body]\nbody = resnet18\nout_channels = {'mod2': 256, 'mod3': 512, 'mod4': 1024, 'mod5': 2048}\n",
            r"\[body\] out_channels: resnet18 gives {'mod1': 64, 'mod2': 64, .*}, not {",
        ),
        ("[body]\nnum_frozen = 6\n", r"\[body\] num_frozen: resnet50 has 5 modules, not 6"),
        (
            "[body]\nbody_params = {'dilation': [2, 1, 2, 4]}\n",
            r"\[fpn\] out_strides: resnet50 gives \(2, 4, 4, 4\), not \(4, 8, 16, 32\)",
        ),
        (
            f"[body]\nout_channels = {dict.fromkeys(OTHER, 1)}\nout_strides = {OTHER}\n[fpn]\ninputs = {list(OTHER)}\n",
            r"\[fpn\] inputs: resnet50 has no mod9, only mod1, mod2, .*, mod5",
        ),
        ("[fpn]\ninputs = ['mod3', 'mod2', 'mod4', 'mod5']\nout_strides = (8, 4, 16, 32)\n", "finest first"),
        ("[fpn]\nout_strides = (4, 8, 16, 64)\n", r"\[fpn\] out_strides: resnet50 gives \(4, 8, 16, 32\)"),
        ("[body]\nbody_params = {'dilation': (1, 2)}\n", r"\[body\] body_params: .*dilation has 2 entries"),
    ],
)
def test_contradictions_are_errors(text, message):
    with torch.device("meta"), pytest.raises(InputError, match=message):
        build_network(config_from_string(text, "panoptic"), 3, 4)


def test_the_strides_of_a_dilated_body_are_defaults():
    text = "[body]\nbody_params = {'dilation': (2, 1, 2, 4)}\n[fpn]\nout_strides = (2, 4, 4, 4)\n[rpn]\nstride = 2\n"
    config = config_from_string(text, "panoptic")
    strides = {"mod1": 2, "mod2": 2, "mod3": 4, "mod4": 4, "mod5": 4}
    assert config.body.out_strides == strides
    assert config_from_string(config_to_string(config)).body.out_strides == strides
    with torch.device("meta"):
        net = build_network(config, 3, 4)
    assert net.body.backbone.out_strides == strides
    assert tuple(net.options.anchors.strides) == (4, 8, 8, 8)


def test_losses_follow_the_configuration():
    options = NetworkOptions.of(tiny_config(overrides=("sem.ohem=0.5", "roi.void_is_background=yes")), 2)
    assert options.semantic_loss.config.sem.ohem == 0.5
    assert options.proposal_matcher.config.void_is_background


@pytest.mark.parametrize("num_stuff", [0, 1])
def test_void_is_background_without_stuff(num_stuff):
    with torch.device("meta"):
        net = build_training_module(tiny_config(), num_stuff, 2).net
    assert net.options.proposal_matcher.config.void_is_background == (num_stuff == 0)


# Keys, shapes, frozen parameters and sizes are those of the published networks


def entries(module):
    return [
        [key, list(value.shape), str(value.dtype).removeprefix("torch.")] for key, value in module.state_dict().items()
    ]


def stored(name):
    return json.loads((DATA / f"keys_{name}.json").read_text())


def test_cityscapes_network(golden_net):
    golden = stored("cityscapes_r50")
    for part, keys in golden["state_dict"].items():
        module = getattr(golden_net, part)
        assert entries(module) == keys
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        assert frozen == golden["requires_grad_false"][part]
        assert sum(p.numel() for p in module.parameters()) == golden["num_parameters"][part]


@pytest.mark.parametrize("kind", ["detection", "instance_seg"])
def test_networks_of_the_other_tasks(kind):
    net = build_network(default_config(kind), 11, 8)
    assert net.sem_head is None
    for part, keys in stored("detection_instance_defaults")[kind].items():
        assert entries(getattr(net, part)) == keys
