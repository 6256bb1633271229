"""A body of the user: trained, resumed, predicted with, exported, and refused where it breaks its own declaration."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from support.components import component_file, forget

import seamseg
from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.models.build import build_network
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("imported")

TINY = template("body", "tiny")

DECORATED = '@body("tiny", keys=TinyKeys)\nclass Tiny(Body):'
OTHER = """@body("tiny", keys=TinyKeys)
class Other(nn.Module):
    strides = {"c2": 4, "c3": 8, "c4": 16, "c5": 32}

    def __init__(self, keys, context):
        super().__init__()


class Tiny(Body):"""


file = component_file("my_tiny.py", TINY)


@pytest.fixture
def options(component_options, file):
    """Of a training with the body."""
    return lambda run, *more, **others: component_options(file, run, "body.body=tiny", *more, **others)


def test_a_network_with_it_is_trained_and_predicts(options, file, tmp_path):
    """`test_own_heads.py` resumes and exports one."""
    run_training(options("run", "body tiny.channels=6", "body.num_frozen=1", "scheduler.epochs=1"))
    model = seamseg.load(tmp_path / "run", device="cpu", overrides=[f"general.components={file}"])
    assert model.network.net.body.backbone.out_channels == {"c2": 6, "c3": 12, "c4": 24, "c5": 48}
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)
    forget("my_tiny")
    with pytest.raises(InputError, match=r"body tiny \(my_tiny.py\) is not imported: name its file with"):
        seamseg.load(tmp_path / "run", device="cpu")


def test_a_semantic_network_uses_its_last_map(options):
    run_training(options("semantic", "general.kind=semantic", "sem.pooling_size=(2, 2)", "scheduler.epochs=1"))


@pytest.mark.parametrize(
    ("old", "new", "overrides", "message"),
    [
        (DECORATED, OTHER, (), r"\(.*my_tiny.py\): must be a class derived from .*Body"),
        ("super().__init__(keys, context)\n", "super().__init__(keys, context)\n        1 / 0\n", (), "line 25: Zero"),
        ("return maps", "return maps['c2']", (), "body tiny, .*my_tiny.py: .*must return a dict of maps"),
        ('"c3": 8', '"c3": 16', (), "c3 of an image of 3 x 192 x 256 is 64 x 24 x 32, .* declare 64 x 12 x 16"),
        ('"c3": 8', '"c3": 2', (), "strides must be in the order"),
        ("self.out_channels[name] =", "self.out_channels['c2'] =", (), r"out_channels names \['c2'\], strides names"),
        ("", "", ("body.num_frozen=5",), "num_frozen: tiny has 4 modules, not 5"),
        ("", "", ("body.body_params={'a': 1}",), r"body_params has no effect on tiny: set keys of \[body tiny\]"),
        ("", "", ("general.checkpoint_body=yes",), "checkpoint_body: tiny does not support it"),
        ("", "", ("optimizer.layer_decay=.5",), "layer_decay: tiny does not number its layers"),
        ("", "", ("general.qat=yes",), r"\[general\] qat needs a body whose norms can be folded, not tiny"),
        ("", "", ("body.weights=timm",), "tiny is no network of timm"),
    ],
)
def test_what_is_refused(old, new, overrides, message, component_options, tmp_path):
    file = tmp_path / "my_tiny.py"
    file.write_text(TINY.replace(old, new) if old else TINY)
    with pytest.raises(InputError, match=message) as error:
        run_training(component_options(file, "run", "body.body=tiny", *overrides))
    assert "\n" not in str(error.value)


def test_initial_weights_are_its_own(file, micro_config):
    config = load_config(micro_config, None, [f"general.components={file}", "body.body=tiny"])
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(build_network(config, 2, 1))
    torch.manual_seed(3)
    from torch import nn

    alone = nn.Conv2d(3, 32, 3, stride=4, padding=1, bias=False)
    assert torch.equal(nets[0].body.backbone.c2[0].weight, alone.weight)
    states = [net.state_dict() for net in nets]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
