"""From configurations to networks: every mode, every task, and configurations that contradict themselves."""

from dataclasses import replace

import pytest
import torch
from support.networks import ROOT, tiny_config, toy_batch

from seamseg.config import config_from_string, config_to_string, load_config
from seamseg.config.bodies import BODIES
from seamseg.models.build import build_network, build_training_module, norm_factories
from seamseg.models.criterion import Criterion
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
def test_normalization_modes_train(mode, body_norm, head_norm, activation):
    config = tiny_config(mode=mode, overrides=(f"body.activation={activation}", "body.activation_slope=0.5"))
    module = build_training_module(config, 2, 3)
    net = module.net
    assert norms_of(net.body) == norms_of(net.sem_head) == {body_norm}
    assert norms_of(net.rpn_head) == norms_of(net.roi_head) == {head_norm}
    assert all(m.activation in (activation, "identity") for m in net.modules() if type(m) in NORMS)
    losses = module(toy_batch((64, 64))).means
    total = sum(losses.values())
    assert torch.isfinite(total)
    total.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_wrong_modes_groups_and_classes():
    with pytest.raises(InputError, match="unknown mode 'batch'"):
        norm_factories(replace(tiny_config().body, normalization_mode="batch"))
    with pytest.raises(InputError, match="0 thing classes"):
        build_network(tiny_config(), 3, 0)
    for mode in ("gn", "syncbn+gn"):
        config = tiny_config(mode=mode, overrides=("body.gn_groups=7",))
        with pytest.raises(InputError, match=r"\[body\] gn_groups: \d+ channels of a layer do not divide into 7"):
            build_training_module(config, 2, 3)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("panoptic", "obj_loss bbx_loss roi_cls_loss roi_bbx_loss roi_msk_loss sem_loss"),
        ("instance_seg", "obj_loss bbx_loss roi_cls_loss roi_bbx_loss roi_msk_loss"),
        ("detection", "obj_loss bbx_loss roi_cls_loss roi_bbx_loss"),
    ],
)
def test_tasks(kind, names):
    module = build_training_module(tiny_config(kind), 2, 3)
    for batch in (toy_batch((64, 64), (48, 96)), toy_batch((64, 64), empty=(0,))):
        losses = module(batch).means
        assert list(losses) == names.split() == list(module.criterion.names)
    (prediction,) = module.net.eval().predict(toy_batch((64, 80)).images)
    assert (prediction.mask_logits is None) == (kind == "detection")
    assert (prediction.semantic is None) == (kind != "panoptic")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.ini")), ids=lambda p: p.name)
def test_shipped_configurations_build(path):
    config = load_config(path)
    with torch.device("meta"):
        net = build_network(config, 3, 4)
    classes = {"panoptic": lambda: net.sem_head.conv_sem.out_channels, "semantic": lambda: net.cls.out_channels}
    if config.kind in classes:
        assert classes[config.kind]() == 3 + 4
    if config.kind == "semantic":
        return
    assert net.roi_head.roi_cls.out_features == 4 + 1
    assert len(net.options.anchors.strides) == config.rpn.fpn_levels


_NO_MOD9 = """
[body]
body = wider_resnet38
out_channels = {"mod9": 1}
out_strides = {"mod9": 1}
[fpn]
inputs = ["mod9"]
out_strides = (4,)
[rpn]
fpn_levels = 1
[roi]
fpn_levels = 1
[sem]
fpn_levels = 1
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[body]\nbody = resnet18\nout_channels = {'mod2': 256, 'mod3': 512, 'mod4': 1024, 'mod5': 2048}\n",
            r"\[body\] out_channels: resnet18 gives {'mod1': 64, 'mod2': 64, .*}, not {",
        ),
        ("[body]\nnum_frozen = 6\n", r"\[body\] num_frozen: resnet50 has 5 modules, not 6"),
        (
            "[body]\nbody_params = {'input_3x3': True}\n",
            "body_params: resnet50 has no parameter 'input_3x3', only dilation",
        ),
        ("[body]\nbody_params = {'keep_outputs': False}\n", "body_params: keep_outputs is no argument"),
        (
            "[body]\nbody = resnext50\nbody_params = {'dilation': (1, 1, 2, 4)}\n",
            r"resnext50 gives \(4, 8, 8, 8\), not",
        ),
        (
            "[body]\nbody_params = {'dilation': [2, 1, 2, 4]}\n",
            r"\[fpn\] out_strides: resnet50 gives \(2, 4, 4, 4\), not \(4, 8, 16, 32\)",
        ),
        (_NO_MOD9, r"\[fpn\] inputs: wider_resnet38 has no mod9, only mod1, mod2, .*, mod7, bn_out"),
        ("[fpn]\ninputs = ['mod3', 'mod2', 'mod4', 'mod5']\nout_strides = (8, 4, 16, 32)\n", "finest first"),
        ("[fpn]\nout_strides = (4, 8, 16, 64)\n", r"\[fpn\] out_strides: resnet50 gives \(4, 8, 16, 32\)"),
        ("[body]\nbody_params = {'widths': 3}\n", r"\[body\] body_params: .*widths"),
        ("[body]\nbody_params = {'dilation': (1, 2)}\n", r"\[body\] body_params: .*dilation has 2 entries"),
    ],
)
def test_contradictions_are_errors(text, message):
    with torch.device("meta"), pytest.raises(InputError, match=message):
        build_network(config_from_string(text, "panoptic"), 3, 4)


@pytest.mark.parametrize("name", ["resnet18", "resnext50", "wider_resnet16_a2", "densenet121"])
def test_any_backbone_can_be_the_body(name):
    """Its channels, strides and inputs of the pyramid are defaults, where a file describes another body, too."""
    layout = BODIES[name]
    config = load_config(ROOT / "configs" / "cityscapes_r50.ini", overrides=[f"body.body={name}"])
    assert config.body.out_channels == layout.out_channels
    assert tuple(config.fpn.inputs) == layout.inputs
    with torch.device("meta"):
        body = build_network(config, 3, 4).body
    assert body.backbone.out_channels == layout.out_channels
    assert body.backbone.out_strides == layout.out_strides
    frozen = {n.split(".")[1] for n, p in body.named_parameters() if not p.requires_grad}
    assert frozen == ({"mod1", "mod2", "tra2"} & set(layout.out_channels)) - {"tra2"}


@pytest.mark.parametrize(
    ("body", "dilation", "strides"),
    [
        ("resnet50", (2, 1, 2, 4), {"mod1": 2, "mod2": 2, "mod3": 4, "mod4": 4, "mod5": 4}),
        ("resnext50", (2, 1, 1, 2), {"mod1": 4, "mod2": 4, "mod3": 8, "mod4": 16, "mod5": 16, "bn_out": 16}),
        ("wider_resnet16_a2", True, dict(zip(BODIES["wider_resnet16_a2"].out_strides, (1, 2, 4, 8, 8, 8, 8, 8)))),
    ],
)
def test_the_strides_of_a_dilated_body_are_defaults(body, dilation, strides):
    inputs = BODIES[body].inputs
    levels = tuple(strides[name] for name in inputs)
    text = f"[body]\nbody = {body}\nbody_params = {{'dilation': {dilation}}}\n[fpn]\nout_strides = {levels}\n"
    config = config_from_string(text, "panoptic")
    assert config.body.out_strides == strides
    assert config_from_string(config_to_string(config)).body.out_strides == strides
    with torch.device("meta"):
        net = build_network(config, 3, 4)
    assert net.body.backbone.out_strides == strides
    assert tuple(net.options.anchors.strides) == levels


def test_criterion_follows_the_configuration():
    criterion = Criterion(tiny_config(overrides=("sem.ohem=0.5", "roi.void_is_background=yes")))
    assert criterion.semantic.image_loss.keywords["keys"].ohem == 0.5
    assert criterion.roi.void_is_background
    assert criterion.mask_size == (16, 16)
