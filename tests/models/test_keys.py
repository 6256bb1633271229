"""State-dict keys, shapes, frozen parameters and sizes are those of the published networks."""

import json

import pytest
from support.golden_files import DATA

from seamseg.config import default_config
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.models.build import build_network
from seamseg.ops.norm import InPlaceABN


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


def test_bodies_with_classifier_and_bias():
    golden = stored("resnet_bodies")
    body = ResNet(RESNETS["resnet50"], InPlaceABN, classes=1000, caffe_mode=True)
    found = entries(body)
    assert [e for e in found if e[0].startswith("mod1.")] == golden["resnet50_caffe_mode_mod1"]
    assert [e for e in found if e[0].startswith("classifier.")] == golden["resnet50_classes1000_extra"]
